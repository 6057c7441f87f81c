//! ZeRO: which rank updates which parameter, where each keeps only a part of the optimizer's state.
//!
//! Parameters are never cut: rules that look at a whole tensor (Adafactor, LAMB, Muon) then need no
//! communication of their own, and the sum of a gradient's squares is taken over the same elements
//! in the same order as without sharding.

use crate::plan::{Plan, ZeroStage};
use crate::terminal::thousands;
use train_numbers::units::{Rank, WorldSize};

/// The owner of each parameter, of which the `i`-th has `lengths[i]` elements. From the largest to
/// the smallest, each goes to the rank with the fewest elements so far, of several to the lowest.
/// Equal on all ranks.
pub fn owners(lengths: &[usize], world: WorldSize) -> Vec<Rank> {
    let mut largest_first: Vec<usize> = (0..lengths.len()).collect();
    largest_first.sort_by_key(|&index| (std::cmp::Reverse(lengths[index]), index));
    let mut owners = vec![Rank(0); lengths.len()];
    let mut held: Vec<(usize, Rank)> = (0..world.get()).map(|rank| (0, Rank(rank))).collect();
    for index in largest_first {
        if let Some(least) = held.iter_mut().min() {
            least.0 += lengths[index];
            owners[index] = least.1;
        }
    }
    owners
}

/// Elements of the rank that owns the largest part.
pub(super) fn largest_part(lengths: &[usize], world: WorldSize) -> usize {
    let mut held = vec![0; world.count()];
    for (rank, length) in owners(lengths, world).into_iter().zip(lengths) {
        held[rank.index()] += length;
    }
    held.into_iter().max().unwrap_or(0)
}

impl Plan {
    /// "optimizer state in 2 parts (ZeRO-1), the largest of 5,900,000 of 11,689,512 parameters"
    pub(super) fn sharding_line(&self) -> Option<String> {
        let distributed = &self.distributed;
        let what = match distributed.zero_stage {
            ZeroStage::None => return None,
            ZeroStage::Optimizer => "optimizer state (ZeRO-1)",
            ZeroStage::Gradients => "optimizer state and gradients (ZeRO-2)",
        };
        if !distributed.is_sharded() {
            return Some(format!("{what}: one rank keeps all of it"));
        }
        let ranks = distributed.world_size;
        let largest = thousands(distributed.largest_part);
        let trained = thousands(self.model.n_parameters - self.optimizer.n_frozen());
        Some(format!(
            "{what} in {ranks} parts, the largest of {largest} of {trained} parameters; rank 0 \
             gathers checkpoints"
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::plan::tests::{ANIMALS, animals, costs, good, read};
    use crate::plan::{Memory, page};
    use train_numbers::units::Bytes;

    fn world(ranks: u32) -> WorldSize {
        WorldSize::new(ranks).unwrap()
    }

    #[test]
    fn the_largest_parameters_go_to_the_ranks_that_have_least() {
        let owners = owners(&[5, 100, 60, 60, 0, 5], world(2));
        assert_eq!(owners, [0, 0, 1, 1, 0, 0].map(Rank));
        assert_eq!(largest_part(&[5, 100, 60, 60, 0, 5], world(2)), 120);
        assert_eq!(largest_part(&[7, 7], world(1)), 14);
        assert_eq!(largest_part(&[], world(3)), 0);
    }

    proptest! {
        #[test]
        fn no_rank_has_more_than_its_share_and_one_parameter(
            lengths in prop::collection::vec(0usize..10_000, 0..60),
            ranks in 1u32..9,
        ) {
            let (sum, largest) = (lengths.iter().sum::<usize>(), lengths.iter().max().copied());
            let most = sum / ranks as usize + largest.unwrap_or(0);
            prop_assert!(largest_part(&lengths, world(ranks)) <= most);
        }
    }

    /// Memory of a rank with these changes, if four ranks had parts of one size.
    fn memory(changes: &[&str]) -> Memory {
        let small_buckets = "distributed.bucket_cap=4MiB";
        let mut plan = good(ANIMALS, &[&[small_buckets], changes].concat(), &animals());
        plan.distributed.largest_part = plan.model.n_parameters / 4;
        Memory::of(&plan, None)
    }

    #[test]
    fn a_ranks_part_is_what_it_needs_and_its_first_rank_copies_all_for_a_checkpoint() {
        let plain = memory(&[]);
        let optimizer = memory(&["distributed.zero_stage=1"]);
        let gradients = memory(&["distributed.zero_stage=2"]);
        assert_eq!(optimizer.optimizer, Bytes(plain.optimizer.0 / 4));
        assert_eq!(optimizer.gradients, plain.gradients);
        assert_eq!(optimizer.checkpoint, plain.checkpoint);
        assert_eq!(gradients.optimizer, optimizer.optimizer);
        // Plain: its own, and its share of three others. Two buckets of the others' may be on their
        // way.
        let own = plain.weights.0;
        let freed = own - own / 4 - 2 * (4 << 20);
        assert_eq!(gradients.gradients.0, plain.gradients.0 - freed);
        // Passes that add up need all gradients until the last.
        let passes = "train.gradient_accumulation_steps=2";
        let added = memory(&["distributed.zero_stage=2", passes]);
        assert_eq!(added.gradients, memory(&[passes]).gradients);
        let alone = ["distributed.devices=1", "distributed.zero_stage=2"];
        assert_eq!(memory(&alone), memory(&alone[..1]));
    }

    #[test]
    fn a_parameter_is_never_cut_so_one_large_one_is_one_ranks() {
        let plan = good(ANIMALS, &["distributed.zero_stage=1"], &animals());
        assert_eq!(plan.distributed.largest_part, 100 * 3 * 224 * 224);
    }

    #[test]
    fn the_page_says_what_is_in_parts() {
        let shown = |changes: &[&str]| {
            let loaded = read(ANIMALS, changes);
            let plan = good(ANIMALS, changes, &animals());
            page(&plan, &loaded, &animals(), &costs(&plan, None))
        };
        let two = shown(&["distributed.zero_stage=1", "distributed.devices=2"]);
        assert!(two.contains("sharding        optimizer state (ZeRO-1) in 2 parts, the"), "{two}");
        let one = shown(&["distributed.zero_stage=2", "distributed.devices=1"]);
        assert!(
            one.contains("optimizer state and gradients (ZeRO-2): one rank keeps all"),
            "{one}"
        );
        assert!(!shown(&[]).contains("ZeRO"));
    }
}
