//! Sums in a fixed order: the same bits whichever rank adds, and however the elements are cut into
//! shares.
//!
//! A machine adds the subtrees of the tree over all ranks that lie within its ranks; the sums of
//! the subtrees of all machines are then added as the tree goes on, so the bits do not depend on
//! where ranks run.
//!
//! ```text
//! ranks           0 1 2 3 4 5        tree: ((0+1)+(2+3))+(4+5)
//! two machines    [0 1 2] [3 4 5]    subtrees: {0,1} {2} and {3} {4,5}
//! ```

use std::ops::Range;

use crate::ops::vectorised;

/// Shares begin at multiples of a cache line, so that two ranks never write the same one.
const CACHE_LINE_ELEMENTS: usize = 16;

/// Elements that are reduced at a time: the pieces of a few ranks fit the first-level cache.
const PIECE: usize = 2048;

/// Adds all `parts` in a fixed binary tree and leaves the sum in `parts[0]`; the others are
/// overwritten.
///
/// Neighbours are paired, and an odd one is carried up: five parts give `((0+1)+(2+3))+4`. A tree
/// over a power of two of equal blocks is the tree of the blocks' own trees, so ranks may begin it
/// alone.
pub fn tree_sum(parts: &mut [&mut [f32]]) {
    let len = parts.first().map_or(0, |part| part.len());
    vectorised(
        #[inline(always)]
        || tree(parts, 0..len),
    );
}

/// Adds all `parts` as [`tree_sum`], and copies the sum into each. One pass over memory.
pub(super) fn tree_sum_everywhere(parts: &mut [&mut [f32]]) {
    let len = parts.first().map_or(0, |part| part.len());
    if let [first, second] = parts {
        return vectorised(
            #[inline(always)]
            || both(first, second),
        );
    }
    for from in (0..len).step_by(PIECE) {
        let piece = from..len.min(from + PIECE);
        vectorised(
            #[inline(always)]
            || tree(parts, piece.clone()),
        );
        copy(parts, piece);
    }
}

/// Adds all `parts` as [`tree_sum`] and leaves the sum in `parts[own]`; the others may be
/// overwritten.
pub(super) fn tree_sum_at(parts: &mut [&mut [f32]], own: usize) {
    let len = parts.first().map_or(0, |part| part.len());
    if let [first, second] = parts {
        // The order of two summands changes no bit.
        let (sum, other) = if own == 0 { (first, second) } else { (second, first) };
        return vectorised(
            #[inline(always)]
            || sum.iter_mut().zip(&**other).for_each(|(sum, value)| *sum += *value),
        );
    }
    for from in (0..len).step_by(PIECE) {
        let piece = from..len.min(from + PIECE);
        vectorised(
            #[inline(always)]
            || tree(parts, piece.clone()),
        );
        if let Some((sum, others)) = parts.split_first_mut()
            && own > 0
        {
            others[own - 1][piece.clone()].copy_from_slice(&sum[piece]);
        }
    }
}

/// [`tree_sum`] of some elements of each part.
#[inline(always)]
fn tree(parts: &mut [&mut [f32]], piece: Range<usize>) {
    let mut stride = 1;
    while stride < parts.len() {
        for left in (0..parts.len() - stride).step_by(2 * stride) {
            let (low, high) = parts.split_at_mut(left + stride);
            let sums = &mut low[left][piece.clone()];
            let values = &high[0][piece.clone()];
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum += *value;
            }
        }
        stride *= 2;
    }
}

/// Copies some elements of the first part into all others.
fn copy(parts: &mut [&mut [f32]], piece: Range<usize>) {
    if let Some((sum, others)) = parts.split_first_mut() {
        for other in others {
            other[piece.clone()].copy_from_slice(&sum[piece.clone()]);
        }
    }
}

/// The sum of two parts in both.
#[inline(always)]
fn both(first: &mut [f32], second: &mut [f32]) {
    for (first, second) in first.iter_mut().zip(second) {
        *first += *second;
        *second = *first;
    }
}

/// The elements of `0..n` that `rank` reduces.
pub(super) fn share(n: usize, rank: usize, world: usize) -> Range<usize> {
    let bound = |rank: usize| match rank {
        last if last == world => n,
        rank => (n * rank / world).next_multiple_of(CACHE_LINE_ELEMENTS).min(n),
    };
    bound(rank)..bound(rank + 1)
}

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

/// Returns the additions in order, as indices of the sum and of what is added to it. A rank where a
/// subtree begins is the right child of the level of its alignment; the left child then begins one,
/// too.
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
    use proptest::prelude::*;

    use super::*;

    /// The tree as it is defined, by levels.
    fn by_levels(mut level: Vec<f32>) -> f32 {
        while level.len() > 1 {
            level = level
                .chunks(2)
                .map(|pair| pair.iter().copied().reduce(|a, b| a + b).unwrap())
                .collect();
        }
        level[0]
    }

    #[test]
    fn five_parts_are_added_as_two_pairs_and_one_carried_up() {
        let mut values = [[1e8f32], [1.0], [-1e8], [3.0], [0.5]];
        let expected = ((1e8f32 + 1.0) + (-1e8 + 3.0)) + 0.5;
        let mut parts: Vec<&mut [f32]> = values.iter_mut().map(|v| &mut v[..]).collect();
        tree_sum_everywhere(&mut parts);
        assert!(parts.iter().all(|part| part[0].to_bits() == expected.to_bits()));
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_the_tree_by_levels(values in prop::collection::vec(-1e6f32..1e6, 1..70)) {
            let mut memory: Vec<[f32; 1]> = values.iter().map(|&v| [v]).collect();
            let mut parts: Vec<&mut [f32]> = memory.iter_mut().map(|v| &mut v[..]).collect();
            tree_sum(&mut parts);
            prop_assert_eq!(parts[0][0].to_bits(), by_levels(values).to_bits());
        }

        #[test]
        fn the_sum_at_any_place_is_that_of_the_tree(
            values in prop::collection::vec(-1e6f32..1e6, 1..9),
            place in 0usize..9,
        ) {
            let own = place % values.len();
            let mut memory: Vec<[f32; 1]> = values.iter().map(|&v| [v]).collect();
            let mut parts: Vec<&mut [f32]> = memory.iter_mut().map(|v| &mut v[..]).collect();
            tree_sum_at(&mut parts, own);
            prop_assert_eq!(parts[own][0].to_bits(), by_levels(values).to_bits());
        }

        #[test]
        fn shares_cover_each_element_once(n in 0usize..5000, world in 1usize..64) {
            let mut next = 0;
            for rank in 0..world {
                let share = share(n, rank, world);
                prop_assert_eq!(share.start, next);
                prop_assert!(share.start <= share.end);
                next = share.end;
            }
            prop_assert_eq!(next, n);
        }
    }

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
