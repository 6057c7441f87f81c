//! The right operand, packed so that a tile reads it from front to back.

use std::ops::Range;
use std::sync::Arc;

use pulp::Arch;
use rayon::prelude::*;

use super::level::{Width, best};
use super::transpose::{Strided, transpose};
use crate::ops::scratch::Scratch;
use crate::ops::simd::vectorised_for;

/// Rows of B packed together: a block that is read along columns stays in the first-level cache.
const ROWS: usize = 16;
/// Columns of a whole panel of the widest registers.
const WHOLE: usize = 64;
/// Values from which on packing is worth several threads.
const PARALLEL: usize = 1 << 15;

/// Layout of B in memory: row `r` and column `c` of tap `t` is `values[t * tap + r * row + c * column]`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Source<'a, E = f32> {
    /// The numbers.
    pub(in crate::ops) values: &'a [E],
    /// Distance of taps.
    pub(in crate::ops) tap: usize,
    /// Distance of rows.
    pub(in crate::ops) row: usize,
    /// Distance of columns.
    pub(in crate::ops) column: usize,
}

/// B, (taps, depth, columns), in panels of a few registers' columns: a panel is (taps, depth, its
/// columns), contiguous; columns beyond the last are zero.
pub(in crate::ops) struct F32Panels {
    /// Values of several operands, if they were packed together.
    values: Arc<Scratch>,
    /// First value of this operand.
    start: usize,
    width: Width,
    pub(super) level: Arch,
    pub(super) taps: usize,
    pub(super) depth: usize,
    pub(super) columns: usize,
}

/// One panel: its values, its first column and how many columns of it exist.
pub(super) struct Panel<'a> {
    pub(super) values: &'a [f32],
    pub(super) registers: usize,
    pub(super) columns: Range<usize>,
}

impl F32Panels {
    /// Packs B, (taps, depth, columns), for the processor's best level. `tap_of` gives the tap of
    /// the source for each tap of B, so that a product may use some of them, in any order.
    pub(in crate::ops) fn pack(
        source: Source<'_>,
        taps: &[usize],
        depth: usize,
        columns: usize,
    ) -> Self {
        Self::pack_for(best(), source, taps, depth, columns)
    }

    /// [`F32Panels::pack`] for a given instruction set.
    pub(in crate::ops) fn pack_for(
        level: Arch,
        source: Source<'_>,
        taps: &[usize],
        depth: usize,
        columns: usize,
    ) -> Self {
        let copy = |block: &Block, [piece]: [&mut [f32]; 1]| {
            let at = taps[block.tap] * source.tap
                + block.rows.start * source.row
                + block.columns.start * source.column;
            vectorised_for(
                level,
                #[inline(always)]
                || copy_block(level, source, at, block, piece),
            );
        };
        let [panels] = Self::build(level, taps.len(), depth, columns, copy);
        panels
    }

    /// B, row-major (depth, columns), for the processor's best level: `values` as they are, if
    /// whole registers of one panel hold all columns, else packed.
    pub(in crate::ops) fn of_rows(values: Scratch, depth: usize, columns: usize) -> Self {
        let level = best();
        let width = Width::of(best());
        if columns.is_multiple_of(width.lanes) && columns <= width.lanes * width.registers {
            return Self {
                values: Arc::new(values),
                start: 0,
                width,
                level,
                taps: 1,
                depth,
                columns,
            };
        }
        let source = Source { values: &values, tap: 0, row: columns, column: 1 };
        Self::pack(source, &[0], depth, columns)
    }

    /// B whose rows are slices of so many columns, for the processor's best level.
    pub(in crate::ops) fn of_slices(rows: &[&[f32]], columns: usize) -> Self {
        let [panels] = Self::pack_together(rows.len(), columns, |block, [piece]| {
            vectorised_for(
                best(),
                #[inline(always)]
                || copy_rows(block, piece, |i| &rows[block.rows.start + i][block.columns.start..]),
            );
        });
        panels
    }

    /// `N` operands of one shape, (depth, columns), packed together. `fill` writes a block of rows
    /// of all of them, whole registers, so zeros beyond the last column.
    pub(in crate::ops) fn pack_together<const N: usize>(
        depth: usize,
        columns: usize,
        fill: impl Fn(&Block, [&mut [f32]; N]) + Sync,
    ) -> [Self; N] {
        Self::build(best(), 1, depth, columns, fill)
    }

    fn build<const N: usize>(
        level: Arch,
        taps: usize,
        depth: usize,
        columns: usize,
        fill: impl Fn(&Block, [&mut [f32]; N]) + Sync,
    ) -> [Self; N] {
        let width = Width::of(level);
        let len = columns.div_ceil(width.lanes) * width.lanes * taps * depth;
        let mut values = Scratch::new(N * len);
        let of = |values, start| Self { values, start, width, level, taps, depth, columns };
        let mut whole = &mut values[..];
        let mut rest: [&mut [f32]; N] =
            std::array::from_fn(|_| whole.split_off_mut(..len).unwrap_or_default());
        let blocks = of(Arc::new(Scratch::new(0)), 0).blocks().into_iter();
        let pieces = blocks.map(|block| {
            let len = block.rows.len() * block.width;
            let pieces: [&mut [f32]; N] =
                rest.each_mut().map(|rest| rest.split_off_mut(..len).unwrap_or_default());
            (block, pieces)
        });
        if N * len < PARALLEL {
            pieces.for_each(|(block, pieces)| fill(&block, pieces));
        } else {
            let pieces: Vec<_> = pieces.collect();
            pieces.into_par_iter().for_each(|(block, pieces)| fill(&block, pieces));
        }
        let values = Arc::new(values);
        std::array::from_fn(|i| of(values.clone(), i * len))
    }

    /// Registers of panel `panel` begin at this one; panels differ by at most one register.
    fn first_register(&self, panel: usize) -> usize {
        let registers = self.columns.div_ceil(self.width.lanes);
        registers * panel / self.count().max(1)
    }

    /// Number of panels.
    pub(super) fn count(&self) -> usize {
        self.columns.div_ceil(self.width.lanes * self.width.registers)
    }

    pub(super) fn panel(&self, panel: usize) -> Panel<'_> {
        let first = self.first_register(panel);
        let end = self.first_register(panel + 1);
        let per_register = self.width.lanes * self.taps * self.depth;
        Panel {
            values: &self.values[self.start..][first * per_register..end * per_register],
            registers: end - first,
            columns: first * self.width.lanes..(end * self.width.lanes).min(self.columns),
        }
    }

    /// The blocks of rows that are packed together, in the order of the packed values.
    fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        for panel in 0..self.count() {
            let first = self.first_register(panel) * self.width.lanes;
            let end = self.first_register(panel + 1) * self.width.lanes;
            for tap in 0..self.taps {
                for row in (0..self.depth).step_by(ROWS) {
                    blocks.push(Block {
                        tap,
                        rows: row..(row + ROWS).min(self.depth),
                        columns: first..end.min(self.columns),
                        width: end - first,
                    });
                }
            }
        }
        blocks
    }
}

/// Some rows of one tap of one panel, row-major.
pub(in crate::ops) struct Block {
    tap: usize,
    pub(in crate::ops) rows: Range<usize>,
    pub(in crate::ops) columns: Range<usize>,
    /// Columns with padding: whole registers.
    pub(in crate::ops) width: usize,
}

/// Copies a block whose rows begin the slices that `row` gives.
#[inline(always)]
fn copy_rows<'a>(block: &Block, piece: &mut [f32], row: impl Fn(usize) -> &'a [f32]) {
    let columns = block.columns.len();
    // Of a constant length, a row is copied without a call.
    let (rows, rest) = piece.as_chunks_mut::<WHOLE>();
    if (columns, rest.len()) == (WHOLE, 0) {
        for (i, to) in rows.iter_mut().enumerate() {
            to.copy_from_slice(&row(i)[..WHOLE]);
        }
        return;
    }
    for (i, to) in piece.chunks_exact_mut(block.width).enumerate() {
        let (to, padding) = to.split_at_mut(columns);
        to.copy_from_slice(&row(i)[..columns]);
        padding.fill(0.0);
    }
}

/// Copies a block that begins at `at` of the source.
#[inline(always)]
fn copy_block(level: Arch, source: Source<'_>, at: usize, block: &Block, piece: &mut [f32]) {
    let columns = block.columns.len();
    let values = source.values;
    if source.column == 1 {
        return copy_rows(block, piece, |i| &values[at + i * source.row..]);
    }
    for row in piece.chunks_exact_mut(block.width) {
        row[columns..].fill(0.0);
    }
    if source.row == 1 {
        let from = Strided { values: &values[at..], stride: source.column };
        let to = Strided { values: piece, stride: block.width };
        return transpose(level, from, to, (block.rows.len(), columns));
    }
    for column in 0..columns {
        let at = at + column * source.column;
        for (i, row) in piece.chunks_exact_mut(block.width).enumerate() {
            row[column] = values[at + i * source.row];
        }
    }
}
