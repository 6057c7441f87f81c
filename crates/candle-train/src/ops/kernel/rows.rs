//! A left operand whose rows are slices, one per row and tap.

use std::ops::Range;

use pulp::Simd;

use super::bf16::{Instructions, Order, Tile as Bf16Tile};
use super::product::{Chunk, Left, Packed};
use super::tile::{Tile, add_rows, zeros};
use crate::ops::element::Element;

/// `A[row][tap][k]` is `slices[row * taps + tap][k]`; a padded tap is a slice of zeros.
pub(in crate::ops) struct Rows<'a, E = f32> {
    /// Slices of at least the depth of B.
    pub(in crate::ops) slices: &'a [&'a [E]],
    /// As many as B has.
    pub(in crate::ops) taps: usize,
}

impl Left for Rows<'_> {
    #[inline(always)]
    fn sums<S: Simd, const M: usize, const V: usize>(
        &self,
        simd: S,
        row: usize,
        chunk: &Chunk,
        b: &[[S::f32s; V]],
    ) -> Tile<S, M, V> {
        let mut sums = zeros::<S, M, V>(simd);
        let depth = chunk.depth.len();
        let mut b = b;
        for tap in chunk.taps.clone() {
            let mut a = [&[] as &[f32]; M];
            for (i, a) in a.iter_mut().enumerate() {
                *a = &self.slices[(row + i) * self.taps + tap][chunk.depth.start..];
            }
            let (now, after) = b.split_at(depth);
            sums = add_rows(simd, sums, a, now);
            b = after;
        }
        sums
    }
}

impl<E: Element> Packed for Rows<'_, E> {
    fn pack(
        &self,
        instructions: Instructions,
        rows: Range<usize>,
        (tap, depth): (usize, Range<usize>),
        tile: &mut Bf16Tile,
    ) {
        instructions.pack_lines(tile, [rows.len(), depth.len()], Order::Lines, |i| {
            &self.slices[(rows.start + i) * self.taps + tap][depth.start..]
        });
    }
}
