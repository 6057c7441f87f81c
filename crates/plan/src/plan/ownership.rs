//! Which rank updates which parameter, where each keeps only a part of the optimizer's state.
//!
//! Parameters are never cut: rules that look at a whole tensor (Adafactor, LAMB, Muon) then need no
//! communication of their own, and the sum of a gradient's squares is taken over the same elements
//! in the same order as without sharding.

use train_numbers::units::{Rank, WorldSize};

/// The owner of each parameter, of which the `i`-th has `lengths[i]` elements: the largest first,
/// each goes to the rank that has the fewest elements so far, the lowest of several. Equal on all
/// ranks.
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

/// Elements of the rank that owns most of these parameters.
pub(crate) fn largest_part(lengths: &[usize], world: WorldSize) -> usize {
    let mut held = vec![0; world.count()];
    for (rank, length) in owners(lengths, world).into_iter().zip(lengths) {
        held[rank.index()] += length;
    }
    held.into_iter().max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
}
