//! Whole products of strided matrices, cut into blocks of rows over all threads.

use rayon::prelude::*;

use super::bf16;
use super::left::{Columns, Rows};
use super::level::{TILE_ROWS, best};
use super::panels::Source;
use super::product::{Epilogue, Output, Sums, Write, product};
use super::right::{Format, Panels};
use super::transpose::{Strided, transpose_best};
use crate::ops::scratch::filled;

/// Rows per block at most: their values of A and of the result stay in the second-level cache, and
/// a core that is slower than the others for a while does not keep them waiting.
const ROWS: usize = 96;
/// Rows per block at least: below, reading B costs more than multiplying.
const MIN_ROWS: usize = 24;

/// A matrix view; every (row, column) lies inside `values` by construction.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row-major (rows, cols) over all of `values`.
    pub(in crate::ops) fn new(values: &'a [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(values.len(), rows * cols, "a matrix covers its values");
        Self { values, rows, cols, row_stride: cols, col_stride: 1 }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// (cols, rows), without copying.
    pub(in crate::ops) fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Packed as the right operand of a product of f32 numbers.
    pub(in crate::ops) fn panels(self) -> Panels {
        self.panels_of(Format::F32)
    }

    /// Packed as the right operand of a product.
    pub(in crate::ops) fn panels_of(self, format: Format) -> Panels {
        let source =
            Source { values: self.values, tap: 0, row: self.row_stride, column: self.col_stride };
        Panels::pack(format, source, &[0], self.rows, self.cols)
    }

    /// `rows` rows from `first` on, as the left operand of a block; calls `f` with it.
    fn left(self, first: usize, b: &Panels, out: Output<'_>, epilogue: &mut dyn Epilogue) {
        let rows = out.starts.len();
        if self.col_stride == 1 {
            let row = |i: usize| &self.values[(first + i) * self.row_stride..][..self.cols];
            let slices: Vec<&[f32]> = (0..rows).map(row).collect();
            product(&mut Rows { slices: &slices, taps: 1 }, b, out, epilogue);
        } else {
            let column = |k: usize| &self.values[k * self.col_stride + first..][..rows];
            let slices: Vec<&[f32]> = (0..self.cols).map(column).collect();
            product(&mut Columns::new(&slices, rows), b, out, epilogue);
        }
    }
}

/// `out`, row-major (a.rows, b.columns), becomes or grows by `a b`, on all threads.
pub(in crate::ops) fn multiply(
    out: &mut [f32],
    a: Matrix<'_>,
    b: &Panels,
    write: Write,
    sums: Sums,
) {
    multiply_and_finish(out, a, b, write, sums, ());
}

/// [`multiply`], and each block is given to an `epilogue`.
pub(in crate::ops) fn multiply_and_finish(
    out: &mut [f32],
    a: Matrix<'_>,
    b: &Panels,
    write: Write,
    sums: Sums,
    epilogue: impl Epilogue + Copy + Sync,
) {
    assert_eq!(out.len(), a.rows * b.columns(), "the output covers its values");
    let rows = rows_per_block(b.format(), a.rows);
    let blocks = out.par_chunks_mut((rows * b.columns()).max(1)).enumerate().with_max_len(1);
    blocks.for_each(|(block, out)| {
        multiply_block(out, a, block * rows, b, write, sums, &mut { epilogue });
    });
}

/// a b, row-major, on all threads.
pub(in crate::ops) fn multiplied(a: Matrix<'_>, b: Matrix<'_>, sums: Sums) -> Vec<f32> {
    let rows = a.rows;
    let columns = b.cols;
    let product = Rowwise::new(a, b, Format::F32, sums);
    filled(rows * columns, rows_per_block(Format::F32, rows) * columns, |start, out| {
        product.write(out, start / columns, &mut ());
    })
}

/// a b, of which any thread may ask for some rows.
pub(in crate::ops) enum Rowwise<'a> {
    /// Rows are multiplied when they are asked for.
    Packed { a: Matrix<'a>, b: Panels, sums: Sums },
    /// The columns of the product, each a row here: of few rows of a, packing b would take longer
    /// than they do. The same bits, since each element is the same sum.
    Turned { columns: Vec<f32>, rows: usize },
}

impl<'a> Rowwise<'a> {
    pub(in crate::ops) fn new(a: Matrix<'a>, b: Matrix<'_>, format: Format, sums: Sums) -> Self {
        // Values that are packed or transposed in either way.
        let packed = b.rows * b.cols;
        let turned = a.rows * (a.cols + b.cols);
        if packed <= turned {
            return Self::Packed { a, b: b.panels_of(format), sums };
        }
        let rows = a.rows;
        let a = a.transposed().panels_of(format);
        let b = b.transposed();
        let block = rows_per_block(format, b.rows) * rows;
        let columns = filled(b.rows * rows, block, |start, out| {
            multiply_block(out, b, start / rows, &a, Write::Replace, sums, &mut ());
        });
        Self::Turned { columns, rows }
    }

    /// `out` become whole rows of the product from row `first` on; `epilogue` is given rows counted
    /// from there.
    pub(in crate::ops) fn write(&self, out: &mut [f32], first: usize, epilogue: &mut dyn Epilogue) {
        match self {
            Self::Packed { a, b, sums } => {
                multiply_block(out, *a, first, b, Write::Replace, *sums, epilogue);
            }
            Self::Turned { columns, rows } => {
                let width = columns.len() / rows;
                let shape = (out.len() / width, width);
                let from = Strided { values: &columns[first..], stride: *rows };
                transpose_best(from, Strided { values: &mut *out, stride: width }, shape);
                if epilogue.is_wanted() {
                    epilogue.finish(best(), 0, out);
                }
            }
        }
    }
}

/// One block of [`multiply`], on the calling thread: `out` are whole rows of the product from row
/// `first` on; `epilogue` is given rows counted from there.
fn multiply_block(
    out: &mut [f32],
    a: Matrix<'_>,
    first: usize,
    b: &Panels,
    write: Write,
    sums: Sums,
    epilogue: &mut dyn Epilogue,
) {
    assert_eq!(a.cols, b.inner(), "inner sizes agree");
    let starts: Vec<usize> = (0..out.len()).step_by(b.columns().max(1)).collect();
    a.left(first, b, Output { values: out, starts: &starts, write, sums }, epilogue);
}

/// Rows per block for a product of so many rows: as many blocks for one thread as for another, in
/// whole tiles.
pub(in crate::ops) fn rows_per_block(format: Format, rows: usize) -> usize {
    let most = match format {
        Format::F32 => ROWS,
        Format::Bf16(_) => bf16::BLOCK_ROWS,
    };
    blocks_of_tiles(format, rows, most)
}

/// [`rows_per_block`], but about `most` at most.
pub(in crate::ops) fn blocks_of_tiles(format: Format, rows: usize, most: usize) -> usize {
    let (fewest, tile) = match format {
        Format::F32 => (MIN_ROWS, TILE_ROWS),
        Format::Bf16(_) => (bf16::STRIP, bf16::STRIP),
    };
    balanced(rows, most, fewest).next_multiple_of(tile)
}

/// Length of the blocks of `n` of something, from `fewest` to `most`: as many for one thread as for
/// another.
pub(in crate::ops) fn balanced(n: usize, most: usize, fewest: usize) -> usize {
    let blocks = n.div_ceil(most).next_multiple_of(rayon::current_num_threads());
    n.div_ceil(blocks.max(1)).max(fewest)
}
