//! Left operands: rows that are slices, one per row and tap; and columns, for the transposed A of a
//! weight gradient.

use std::ops::Range;

use pulp::Simd;

use super::bf16::{Instructions, Order, Tile as Bf16Tile};
use super::level::TILE_ROWS;
use super::product::{Chunk, Left, Packed};
use super::tile::{Tile, add_outer, add_rows, zeros};
use crate::ops::element::Element;
use crate::ops::scratch::Scratch;

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

/// Values of a cache line.
pub(super) const LINE: usize = 16;
/// Rows whose values of one position are copied into one line: whole tiles.
pub(super) const GROUP: usize = LINE / TILE_ROWS * TILE_ROWS;
/// Positions that are copied for one group after the other, so that both sides are read and written
/// in pieces.
const POSITIONS: usize = 8;
/// Panels from which on a tile's values are copied together before use.
const COPIED: usize = 2;

/// `A[i][p]` is `slices[p][i]`: row `i` of the product sums over all positions `p`.
pub(in crate::ops) struct Columns<'a, E = f32> {
    slices: &'a [&'a [E]],
    rows: usize,
    /// The chunk at hand, if it is copied: for each group of rows, a line per position.
    lines: Option<Scratch>,
}

impl<'a, E> Columns<'a, E> {
    /// One slice of at least `rows` values per row of B.
    pub(in crate::ops) fn new(slices: &'a [&'a [E]], rows: usize) -> Self {
        Self { slices, rows, lines: None }
    }
}

impl Left for Columns<'_> {
    /// Copies the chunk if it is used often, so that a tile reads it from front to back.
    #[inline(always)]
    fn prepare(&mut self, chunk: &Chunk, panels: usize) {
        let slices = &self.slices[chunk.depth.clone()];
        if panels < COPIED {
            return;
        }
        // Given back before it is taken again.
        self.lines = None;
        let stride = slices.len() * LINE;
        let lines = self.lines.insert(Scratch::new(self.rows.div_ceil(GROUP) * stride));
        for (block, slices) in slices.chunks(POSITIONS).enumerate() {
            for (group, lines) in lines.chunks_exact_mut(stride).enumerate() {
                let (lines, _) = lines[block * POSITIONS * LINE..].as_chunks_mut::<LINE>();
                copy_group(lines, slices, group * GROUP..self.rows);
            }
        }
    }

    #[inline(always)]
    fn sums<S: Simd, const M: usize, const V: usize>(
        &self,
        simd: S,
        row: usize,
        chunk: &Chunk,
        b: &[[S::f32s; V]],
    ) -> Tile<S, M, V> {
        if let Some(lines) = &self.lines {
            return sums_of_lines(simd, lines, row, chunk, b);
        }
        let mut sums = zeros::<S, M, V>(simd);
        for (slice, b) in self.slices[chunk.depth.clone()].iter().zip(b) {
            let (a, _) = slice[row..row + M].as_chunks::<M>();
            add_outer(simd, &mut sums, &a[0], b);
        }
        sums
    }
}

/// The sums of rows `row..row + M` over a chunk, of which `lines` are a copy: for each group of
/// rows, a line per position.
#[inline(always)]
pub(super) fn sums_of_lines<S: Simd, const M: usize, const V: usize>(
    simd: S,
    lines: &[f32],
    row: usize,
    chunk: &Chunk,
    b: &[[S::f32s; V]],
) -> Tile<S, M, V> {
    let mut sums = zeros::<S, M, V>(simd);
    let stride = chunk.depth.len() * LINE;
    let (lines, _) = lines[row / GROUP * stride..][..stride].as_chunks::<LINE>();
    for (line, b) in lines.iter().zip(b) {
        let (a, _) = line[row % GROUP..].as_chunks::<M>();
        add_outer(simd, &mut sums, &a[0], b);
    }
    sums
}

impl<E: Element> Packed for Columns<'_, E> {
    fn order(&self, instructions: Instructions) -> Order {
        instructions.order_across()
    }

    fn pack(
        &self,
        instructions: Instructions,
        rows: Range<usize>,
        (_, depth): (usize, Range<usize>),
        tile: &mut Bf16Tile,
    ) {
        let order = instructions.order_across();
        instructions.pack_across(tile, [rows.len(), depth.len()], order, |k| {
            &self.slices[depth.start + k][rows.start..]
        });
    }
}

/// Copies the first values of `rows` from each slice into its line: a whole line where there are as
/// many, of which the last values are not used.
#[inline(always)]
fn copy_group(lines: &mut [[f32; LINE]], slices: &[&[f32]], rows: Range<usize>) {
    if rows.len() >= LINE {
        for (line, slice) in lines.iter_mut().zip(slices) {
            line.copy_from_slice(&slice[rows.start..rows.start + LINE]);
        }
        return;
    }
    let rows = rows.start..rows.end.min(rows.start + GROUP);
    for (line, slice) in lines.iter_mut().zip(slices) {
        line[..rows.len()].copy_from_slice(&slice[rows.clone()]);
    }
}
