//! Layout of the shared memory of the `shm` backend: a header, then for each rank a staging area
//! and its gradients.
//!
//! ```text
//! header | staging 0 | gradients 0 | staging 1 | gradients 1 | ...
//! ```

use std::ops::Range;

use train_numbers::units::{Bytes, Rank, WorldSize};

/// Counters, barriers and call signatures of all ranks.
pub const HEADER_BYTES: u64 = 64 << 10;

/// Most ranks of a machine: as many as have a slot in the header.
pub const MAX_RANKS: u32 = 64;

/// Room of each rank for tensors that are not gradients, which pass through in pieces of this size.
pub const STAGING_BYTES: u64 = 1 << 20;

/// Elements to which the gradient of each parameter is rounded up, so that buckets begin on cache
/// lines.
pub const ALIGNMENT: usize = 64;

/// Byte offsets of the areas of each rank in the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    world: WorldSize,
    gradients: u64,
}

impl Mapping {
    /// The layout for `world` ranks and a model whose parameters have `lengths` elements.
    pub fn new(world: WorldSize, lengths: impl IntoIterator<Item = usize>) -> Self {
        Self { world, gradients: gradient_bytes(lengths) }
    }

    /// Bytes of the whole mapping.
    pub fn total(&self) -> Bytes {
        Bytes(HEADER_BYTES + u64::from(self.world.get()) * self.stride())
    }

    /// The staging area of `rank`.
    pub fn staging(&self, rank: Rank) -> Range<u64> {
        let start = HEADER_BYTES + u64::from(rank.0) * self.stride();
        start..start + STAGING_BYTES
    }

    /// The gradients of `rank`.
    pub fn gradients(&self, rank: Rank) -> Range<u64> {
        let start = self.staging(rank).end;
        start..start + self.gradients
    }

    fn stride(&self) -> u64 {
        STAGING_BYTES + self.gradients
    }
}

/// f32 gradients of parameters with `lengths` elements, each rounded up to [`ALIGNMENT`] elements.
fn gradient_bytes(lengths: impl IntoIterator<Item = usize>) -> u64 {
    lengths.into_iter().map(|length| 4 * length.next_multiple_of(ALIGNMENT) as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_follow_each_other_without_gap_or_overlap_up_to_the_end() {
        for world in 1..=5 {
            let world = WorldSize::new(world).unwrap();
            let mapping = Mapping::new(world, [1, 64, 65, 0, 1000]);
            let mut end = HEADER_BYTES;
            for rank in (0..world.get()).map(Rank) {
                assert_eq!(mapping.staging(rank).start, end);
                assert_eq!(mapping.gradients(rank).start, mapping.staging(rank).end);
                end = mapping.gradients(rank).end;
                assert_eq!(mapping.gradients(rank).start % 256, 0);
            }
            assert_eq!(mapping.total(), Bytes(end));
        }
    }

    #[test]
    fn each_parameter_is_rounded_up_on_its_own() {
        assert_eq!(gradient_bytes([1, 64, 65]), 4 * (64 + 64 + 128));
        assert_eq!(gradient_bytes([]), 0);
    }
}
