//! Products by a stored matrix, which is the left operand: the numbers of a block of its rows, or
//! columns, are widened to f32 chunk by chunk, so that nothing but the file holds all of them.

use std::ops::Range;

use pulp::Simd;

use super::bf16::{DEPTH, Instructions, Order, Tile as Bf16Tile};
use super::left::{GROUP, LINE, sums_of_lines};
use super::matrix::{Matrix, Rowwise, rows_per_block};
use super::product::{Chunk, Left, Output, Packed, Sums, Write, product};
use super::right::{Format, Panels};
use super::tile::{Tile, add_rows, zeros};
use crate::Precision;
use crate::ops::scratch::{Scratch, filled};
use crate::ops::stored::StoredNumbers;

/// Lines of a tile of bf16 numbers.
const LINES: usize = 16;

/// A stored matrix (rows, columns), row-major. Its numbers are rounded as `rounding` says once they
/// are f32.
#[derive(Clone, Copy)]
pub(in crate::ops) struct StoredMatrix<'a> {
    pub(in crate::ops) numbers: StoredNumbers<'a>,
    pub(in crate::ops) rows: usize,
    pub(in crate::ops) columns: usize,
    pub(in crate::ops) rounding: Precision,
}

impl StoredMatrix<'_> {
    /// Writes a row's numbers from `column` on, as many as `to` has.
    fn widen(&self, row: usize, column: usize, to: &mut [f32]) {
        self.numbers.widen_rounded(row * self.columns + column, to, self.rounding);
    }

    /// x w^T of rows x (n, columns): (n, rows). The same bits as those of `w` in f32.
    pub(in crate::ops) fn applied_to(self, x: Matrix<'_>, format: Format) -> Rowwise<'static> {
        let n = x.rows();
        let x = x.transposed().panels_of(format);
        by_columns(self.rows, n, &x, |first, rows| StoredRows {
            matrix: self,
            first,
            rows,
            wide: None,
        })
    }

    /// dy w of rows dy (n, rows): (n, columns). The same bits as those of `w` in f32.
    pub(in crate::ops) fn pulled_back(self, dy: Matrix<'_>, format: Format) -> Rowwise<'static> {
        let n = dy.rows();
        let dy = dy.transposed().panels_of(format);
        by_columns(self.columns, n, &dy, |first, rows| StoredColumns {
            matrix: self,
            first,
            rows,
            lines: None,
        })
    }
}

/// The product, each of whose `columns` is a row of `left` by the panels of `n` columns.
fn by_columns<L: Left>(
    columns: usize,
    n: usize,
    panels: &Panels,
    left: impl Fn(usize, usize) -> L + Sync,
) -> Rowwise<'static> {
    let block = rows_per_block(panels.format(), columns) * n;
    let columns = filled(columns * n, block, |start, out| {
        let starts: Vec<usize> = (0..out.len()).step_by(n.max(1)).collect();
        let mut left = left(start / n.max(1), starts.len());
        let out = Output { values: out, starts: &starts, write: Write::Replace, sums: Sums::Long };
        product(&mut left, panels, out, &mut ());
    });
    Rowwise::Turned { columns, rows: n }
}

/// Some rows of a stored matrix.
struct StoredRows<'a> {
    matrix: StoredMatrix<'a>,
    first: usize,
    rows: usize,
    /// The chunk at hand, row-major.
    wide: Option<Scratch>,
}

impl Left for StoredRows<'_> {
    #[inline(always)]
    fn prepare(&mut self, chunk: &Chunk, _: usize) {
        // Given back before it is taken again.
        self.wide = None;
        let depth = chunk.depth.len();
        let wide = self.wide.insert(Scratch::new(self.rows * depth));
        for (row, wide) in wide.chunks_exact_mut(depth.max(1)).enumerate() {
            self.matrix.widen(self.first + row, chunk.depth.start, wide);
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
        let wide = self.wide.as_deref().unwrap_or_default();
        let depth = chunk.depth.len();
        let mut a = [&[] as &[f32]; M];
        for (i, a) in a.iter_mut().enumerate() {
            *a = &wide[(row + i) * depth..][..depth];
        }
        add_rows(simd, zeros::<S, M, V>(simd), a, b)
    }
}

impl Packed for StoredRows<'_> {
    fn pack(
        &self,
        instructions: Instructions,
        rows: Range<usize>,
        (_, depth): (usize, Range<usize>),
        tile: &mut Bf16Tile,
    ) {
        let mut wide = [[0f32; DEPTH]; LINES];
        for (i, wide) in wide[..rows.len()].iter_mut().enumerate() {
            let row = self.first + rows.start + i;
            self.matrix.widen(row, depth.start, &mut wide[..depth.len()]);
        }
        instructions.pack_lines(tile, [rows.len(), depth.len()], Order::Lines, |i| &wide[i]);
    }
}

/// Some columns of a stored matrix, as the rows of its transpose.
struct StoredColumns<'a> {
    matrix: StoredMatrix<'a>,
    first: usize,
    rows: usize,
    /// The chunk at hand: for each group of columns, a line per row.
    lines: Option<Scratch>,
}

impl Left for StoredColumns<'_> {
    #[inline(always)]
    fn prepare(&mut self, chunk: &Chunk, _: usize) {
        // Given back before it is taken again.
        self.lines = None;
        let stride = chunk.depth.len() * LINE;
        let mut wide = Scratch::new(self.rows);
        let lines = self.lines.insert(Scratch::new(self.rows.div_ceil(GROUP) * stride));
        for (position, row) in chunk.depth.clone().enumerate() {
            self.matrix.widen(row, self.first, &mut wide);
            for (group, values) in wide.chunks(GROUP).enumerate() {
                lines[group * stride + position * LINE..][..values.len()].copy_from_slice(values);
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
        let lines = self.lines.as_deref().unwrap_or_default();
        sums_of_lines(simd, lines, row, chunk, b)
    }
}

impl Packed for StoredColumns<'_> {
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
        let mut wide = [[0f32; LINES]; DEPTH];
        for (k, wide) in wide[..depth.len()].iter_mut().enumerate() {
            self.matrix.widen(depth.start + k, self.first + rows.start, &mut wide[..rows.len()]);
        }
        let order = instructions.order_across();
        instructions.pack_across(tile, [rows.len(), depth.len()], order, |k| &wide[k]);
    }
}
