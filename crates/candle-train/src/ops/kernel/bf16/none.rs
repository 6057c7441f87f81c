//! A processor without instructions that multiply bf16 numbers.

use std::convert::Infallible;

use super::{Order, Tile};
use crate::Bf16Instructions;
use crate::ops::element::Element;

/// There are none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) struct Instructions(Infallible);

impl Instructions {
    /// The fastest of this processor.
    pub(in crate::ops) fn best() -> Option<Self> {
        None
    }

    /// All instructions of this processor.
    #[cfg(test)]
    pub(in crate::ops) fn all() -> Vec<Self> {
        Vec::new()
    }

    /// Name of these instructions.
    pub(in crate::ops) fn kind(self) -> Bf16Instructions {
        match self.0 {}
    }

    /// True if they are more than twice as fast as those for f32.
    pub(in crate::ops::kernel) fn multiply_tiles(self) -> bool {
        match self.0 {}
    }

    /// True if they are faster than those for f32.
    pub(in crate::ops) fn outrun_f32(self) -> bool {
        match self.0 {}
    }

    /// The order of an A that is packed across its lines.
    pub(in crate::ops::kernel) fn order_across(self) -> Order {
        match self.0 {}
    }

    /// Packs lines.
    pub(in crate::ops::kernel) fn pack_lines<'a, E: Element>(
        self,
        _: &mut Tile,
        _: [usize; 2],
        _: Order,
        _: impl Fn(usize) -> &'a [E],
    ) {
        match self.0 {}
    }

    /// Packs lines that lie across.
    pub(in crate::ops::kernel) fn pack_across<'a, E: Element>(
        self,
        _: &mut Tile,
        _: [usize; 2],
        _: Order,
        _: impl Fn(usize) -> &'a [E],
    ) {
        match self.0 {}
    }

    pub(super) fn start(self) -> Multiplier {
        match self.0 {}
    }
}

/// There is none.
pub(super) struct Multiplier(Infallible);

impl Multiplier {
    pub(super) fn multiply(
        &self,
        _: ([&[[Tile; 2]]; 2], Order),
        _: (&mut [f32], usize),
        _: usize,
        _: bool,
    ) {
        match self.0 {}
    }
}
