//! Gradient memory that a reduction replaces by its sum.

use std::ops::{Deref, DerefMut, Range};

use crate::collective::shared_mapping::SharedFloats;
use crate::memory::{Pages, release_pages};

/// Ranges of elements of a segment, in their order.
pub type Elements = Vec<Range<usize>>;

/// Gradient memory, f32, that moves between the training thread and the communication thread.
///
/// The owner may write it. A reduction needs `&mut`, so it is not read while other ranks write it.
pub struct GradientBuffer {
    pub(super) memory: Memory,
    pub(super) index: usize,
}

/// Memory of a segment.
pub(super) enum Memory {
    /// This rank's own.
    Private(Vec<f32>),
    /// A part of this rank's gradient area.
    Shared(SharedFloats),
}

impl GradientBuffer {
    /// Memory of this rank's own for `n` elements, zeroed; `index` is its place in the call of
    /// `segments`.
    pub fn new(index: usize, n: usize) -> Self {
        Self { memory: Memory::Private(vec![0.0; n]), index }
    }

    /// Position in the call of `segments`: the number of its bucket.
    pub fn index(&self) -> usize {
        self.index
    }

    /// True if nothing but memory of segments lies in its pages.
    #[cfg(feature = "cuda")]
    pub(crate) fn has_own_pages(&self) -> bool {
        matches!(self.memory, Memory::Shared(_))
    }

    /// Returns the memory of these elements, as far as it is whole pages, to the system until they
    /// are written again. They have no meaning until then. No rank may be in a reduction of this
    /// segment.
    pub fn release(&mut self, elements: &[Range<usize>]) {
        let pages = match self.memory {
            Memory::Private(_) => Pages::Private,
            Memory::Shared(_) => Pages::Shared,
        };
        for range in elements {
            release_pages(&mut self[range.clone()], pages);
        }
    }
}

impl Deref for GradientBuffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.memory {
            Memory::Private(values) => values,
            Memory::Shared(floats) => floats.as_slice(),
        }
    }
}

impl DerefMut for GradientBuffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        match &mut self.memory {
            Memory::Private(values) => values,
            Memory::Shared(floats) => floats.as_mut_slice(),
        }
    }
}
