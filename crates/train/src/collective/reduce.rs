//! Sums in a fixed order: the same bits whichever rank adds, and however the elements are cut into
//! shares.

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
}
