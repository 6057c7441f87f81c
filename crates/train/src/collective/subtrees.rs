//! A machine's ranks -> the parts of the tree over all ranks that the machine can sum alone. Pure.
//!
//! ```text
//! ranks           0 1 2 3 4 5        tree: ((0+1)+(2+3))+(4+5)
//! two machines    [0 1 2] [3 4 5]    subtrees: {0,1} {2} and {3} {4,5}
//! ```
//!
//! The sums of the subtrees of all machines are then added as the tree goes on, so the bits do not
//! depend on where ranks run.

use std::ops::Range;

use crate::ops::vectorised;

/// Elements that are added at a time: the pieces of a few sums fit the first-level cache.
const PIECE: usize = 2048;

/// The largest subtrees of the tree over `world` ranks that lie within `ranks`, in their order.
pub(super) fn subtrees(world: usize, ranks: Range<usize>) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut first = ranks.start;
    while first < ranks.end {
        // The last subtree of a level may be cut off by the end of the world.
        let end_of = |size: usize| (first + size).min(world);
        let fits = |size: &usize| first.is_multiple_of(*size) && end_of(*size) <= ranks.end;
        let sizes = std::iter::successors(Some(1_usize), |size| size.checked_mul(2));
        let size = sizes.take_while(|size| size / 2 < world).filter(fits).max().unwrap_or(1);
        found.push(first..end_of(size));
        first = end_of(size);
    }
    found
}

/// Adds the sums of subtrees that cover all ranks as the tree over `world` ranks does, and leaves
/// the sum in the first of `sums`; the others are overwritten. The i-th is that of the subtree
/// whose first rank is `starts[i]`.
pub(super) fn finish_tree(world: usize, starts: &[usize], sums: &mut [&mut [f32]]) {
    let mut places = vec![None; world];
    for (place, start) in starts.iter().enumerate() {
        places[*start] = Some(place);
    }
    let steps = steps(&places);
    let len = sums.first().map_or(0, |sum| sum.len());
    for from in (0..len).step_by(PIECE) {
        let piece = from..len.min(from + PIECE);
        vectorised(
            #[inline(always)]
            || {
                for &(left, right) in &steps {
                    let (low, high) = sums.split_at_mut(right);
                    let sum = &mut low[left][piece.clone()];
                    let other = &high[0][piece.clone()];
                    for (sum, value) in sum.iter_mut().zip(other) {
                        *sum += *value;
                    }
                }
            },
        );
    }
}

/// Which sum is added to which, in order. A rank where a subtree begins is the right child of the
/// level of its alignment; the left child then begins one, too.
fn steps(places: &[Option<usize>]) -> Vec<(usize, usize)> {
    let mut steps = Vec::new();
    let mut stride = 1;
    while stride < places.len() {
        for left in (0..places.len() - stride).step_by(2 * stride) {
            steps.extend(places[left].zip(places[left + stride]));
        }
        stride *= 2;
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::reduce::tree_sum;

    fn value(rank: usize, i: usize) -> f32 {
        let mixed = (rank * 40_503 + i * 7919 + 1) % 20_011;
        mixed as f32 * 1.37e-3 * [1.0, -1e4, 1e-4][mixed % 3]
    }

    /// The sum of `ranks` by the tree that begins at the first of them.
    fn sum(ranks: Range<usize>, n: usize) -> Vec<f32> {
        let mut all: Vec<Vec<f32>> =
            ranks.map(|rank| (0..n).map(|i| value(rank, i)).collect()).collect();
        tree_sum(&mut all.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        all.swap_remove(0)
    }

    /// All ways to divide `world` ranks among machines, as the first ranks of these.
    fn divisions(world: usize) -> impl Iterator<Item = Vec<Range<usize>>> {
        (0..1_u32 << (world - 1)).map(move |cuts| {
            let starts: Vec<usize> =
                (0..world).filter(|&rank| rank == 0 || cuts >> (rank - 1) & 1 == 1).collect();
            let ends = starts.iter().skip(1).copied().chain([world]);
            starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
        })
    }

    #[test]
    fn subtrees_are_the_largest_that_a_machine_can_sum_alone() {
        assert_eq!(subtrees(6, 0..3), [0..2, 2..3]);
        assert_eq!(subtrees(6, 3..6), [3..4, 4..6]);
        assert_eq!(subtrees(8, 4..8), std::slice::from_ref(&(4..8)));
        assert_eq!(subtrees(5, 0..5).len(), 1, "the whole tree");
        assert_eq!(subtrees(16, 1..15), [1..2, 2..4, 4..8, 8..12, 12..14, 14..15]);
        assert_eq!(subtrees(7, 4..7).len(), 1, "the last subtree is cut off");
    }

    #[test]
    fn every_division_of_up_to_sixteen_ranks_gives_the_bits_of_the_flat_tree() {
        let n = 5;
        for world in 1..=16 {
            let right: Vec<u32> = sum(0..world, n).into_iter().map(f32::to_bits).collect();
            for machines in divisions(world) {
                let all: Vec<Range<usize>> =
                    machines.iter().flat_map(|ranks| subtrees(world, ranks.clone())).collect();
                assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start), "{all:?}");
                let starts: Vec<usize> = all.iter().map(|ranks| ranks.start).collect();
                let mut sums: Vec<Vec<f32>> =
                    all.iter().map(|ranks| sum(ranks.clone(), n)).collect();
                let mut parts: Vec<&mut [f32]> = sums.iter_mut().map(Vec::as_mut_slice).collect();
                finish_tree(world, &starts, &mut parts);
                let found: Vec<u32> = parts[0].iter().map(|value| value.to_bits()).collect();
                assert_eq!(found, right, "{machines:?}");
            }
        }
    }
}
