//! Sums over the rows of row-major values, one per column: in f64, blocks of rows in a fixed order.

use rayon::prelude::*;

use super::element::Element;
use super::simd::vectorised;

/// Rows per partial sum.
const ROWS: usize = 128;

/// Sum of each column of `values` (rows, `columns`): the gradient of a bias that was added to every row.
pub(super) fn column_sums<E: Element>(values: &[E], columns: usize) -> Vec<f32> {
    column_sums_of(
        values,
        columns,
        #[inline(always)]
        |value| value,
    )
}

/// [`column_sums`] of `f` of the values; `f` must be `#[inline(always)]`.
pub(super) fn column_sums_of<E: Element>(
    values: &[E],
    columns: usize,
    f: impl Fn(f32) -> f32 + Sync,
) -> Vec<f32> {
    let block_sums = |block: &[E]| {
        let mut sums = vec![0f64; columns];
        vectorised(
            #[inline(always)]
            || {
                for row in block.chunks_exact(columns) {
                    for (sum, &value) in sums.iter_mut().zip(row) {
                        *sum += f64::from(f(value.wide()));
                    }
                }
            },
        );
        sums
    };
    let blocks = values.par_chunks((ROWS * columns).max(1)).map(block_sums);
    added(&blocks.collect::<Vec<_>>(), columns)
}

/// Sum of x dy over the rows of each of `c` columns.
pub(super) fn column_sums_of_products(x: &[f32], dy: &[f32], c: usize) -> Vec<f32> {
    let block_sums = |(x, dy): (&[f32], &[f32])| {
        let mut sums = vec![0f64; c];
        vectorised(
            #[inline(always)]
            || {
                for (x, dy) in x.chunks_exact(c).zip(dy.chunks_exact(c)) {
                    for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
                        *sum += f64::from(*x) * f64::from(*dy);
                    }
                }
            },
        );
        sums
    };
    let blocks = x.par_chunks(ROWS * c).zip(dy.par_chunks(ROWS * c)).map(block_sums);
    added(&blocks.collect::<Vec<_>>(), c)
}

/// The sums of `columns` numbers of each block, in their order.
fn added(blocks: &[Vec<f64>], columns: usize) -> Vec<f32> {
    let mut total = vec![0f64; columns];
    for sums in blocks {
        total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
    }
    total.into_iter().map(|sum| sum as f32).collect()
}
