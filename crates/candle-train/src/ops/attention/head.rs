//! One head of one sample, on one thread.

use std::ops::Range;

use super::ScoreBounds;
use super::scores::{Block, Dropout, PerQuery, QUERIES, Softmax};
use crate::ops::kernel::{Columns, Format, Output, Panels, Rows, Source, Sums, Write, product};
use crate::ops::math::tanh;
use crate::ops::scratch::Scratch;
use crate::ops::simd::{sum_of_pairs, vectorised};

/// The head's part of an operand: row `i` is `values[i * stride..][..width]`.
#[derive(Clone, Copy)]
pub(super) struct HeadRows<'a> {
    pub(super) values: &'a [f32],
    pub(super) stride: usize,
    pub(super) length: usize,
    pub(super) width: usize,
    /// Format of the products with other rows.
    pub(super) format: Format,
}

impl<'a> HeadRows<'a> {
    fn row(self, i: usize) -> &'a [f32] {
        &self.values[i * self.stride..][..self.width]
    }

    fn rows(self, range: Range<usize>) -> Vec<&'a [f32]> {
        range.map(|i| self.row(i)).collect()
    }

    /// Rows `range` as a right operand, (rows, width).
    fn panels(self, range: Range<usize>) -> Panels {
        let source = Source { values: self.from(range.start), tap: 0, row: self.stride, column: 1 };
        Panels::pack(self.format, source, &[0], range.len(), self.width)
    }

    /// Rows `range`, transposed, as a right operand: (width, rows).
    fn turned(self, range: Range<usize>) -> Panels {
        let source = Source { values: self.from(range.start), tap: 0, row: 1, column: self.stride };
        Panels::pack(self.format, source, &[0], self.width, range.len())
    }

    /// Rows `range` alone.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        Self { values: self.from(range.start), length: range.len(), ..self }
    }

    fn from(self, row: usize) -> &'a [f32] {
        self.values.get(row * self.stride..).unwrap_or_default()
    }
}

/// Queries (t, d), keys and values (s, d).
pub(super) struct Head<'a> {
    pub(super) q: HeadRows<'a>,
    pub(super) k: HeadRows<'a>,
    pub(super) v: HeadRows<'a>,
    pub(super) causal: bool,
    pub(super) bounds: ScoreBounds,
    pub(super) dropout: Option<Dropout>,
}

/// Gradients of one head, (length, d), zeroed.
pub(super) struct HeadGradients<'a> {
    pub(super) q: &'a mut [f32],
    pub(super) k: &'a mut [f32],
    pub(super) v: &'a mut [f32],
}

impl Head<'_> {
    fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        Block::all(self.q.length, self.k.length, self.causal, self.bounds.window)
    }

    fn scale(&self) -> f32 {
        (1.0 / (self.q.width as f64).sqrt()) as f32
    }

    /// The result (t, d), and for each query the logarithm of its sum of exponentials.
    pub(super) fn forward(&self, y: &mut [f32], log_sums: &mut [f32]) {
        let d = self.q.width;
        for block in self.blocks() {
            let mut p = by_key(self.k, self.q, &block);
            let mut scale = self.scale();
            if let Some(cap) = self.bounds.softcap {
                cap_scores(&mut p, scale, cap as f32);
                scale = 1.0;
            }
            let (sums, shares) = block.exponentials(&mut p, scale);
            log_sums[block.queries.clone()].copy_from_slice(&sums[..block.queries.len()]);
            if let Some(dropout) = self.dropout {
                multiply(&mut p, &dropout.factors(&block));
            }
            let y = &mut y[block.queries.start * d..block.queries.end * d];
            over_keys(self.v, p, &block, y);
            for (y, share) in y.chunks_exact_mut(d).zip(shares) {
                for y in y {
                    *y *= share;
                }
            }
        }
    }

    /// Gradients, given the result and its gradient.
    pub(super) fn backward(
        &self,
        y: HeadRows<'_>,
        dy: HeadRows<'_>,
        log_sums: &[f32],
        gradients: &mut HeadGradients<'_>,
    ) {
        let d = self.q.width;
        for block in self.blocks() {
            let mut p = by_key(self.k, self.q, &block);
            let mut ds = by_key(self.v, dy, &block);
            let factors = self.dropout.map(|dropout| dropout.factors(&block));
            if let Some(factors) = &factors {
                multiply(&mut ds, factors);
            }
            let mut sums = [0.0; QUERIES];
            sums[..block.queries.len()].copy_from_slice(&log_sums[block.queries.clone()]);
            let means = products_of_rows(y, dy, &block);
            let mut scale = self.scale();
            let slopes = self.bounds.softcap.map(|cap| {
                let slopes = slopes_of_cap(&p, scale, cap as f32);
                cap_scores(&mut p, scale, cap as f32);
                scale = 1.0;
                slopes
            });
            block.pull_back(&mut p, &mut ds, &Softmax { log_sums: sums, means, scale });
            if let Some(slopes) = &slopes {
                multiply(&mut ds, slopes);
            }
            if let Some(factors) = &factors {
                multiply(&mut p, factors);
            }
            add_over_queries(&p, dy, &block, gradients.v);
            add_over_queries(&ds, self.q, &block, gradients.k);
            let dq = &mut gradients.q[block.queries.start * d..block.queries.end * d];
            over_keys(self.k, ds, &block, dq);
        }
    }
}

/// (keys, queries): products of the rows of `by_key` and `by_query`.
fn by_key(by_key: HeadRows<'_>, by_query: HeadRows<'_>, block: &Block) -> Scratch {
    let mut out = Scratch::new(block.len());
    let rows = by_key.rows(block.keys.clone());
    let starts = starts(block.len(), block.width());
    let output =
        Output { values: &mut out, starts: &starts, write: Write::Replace, sums: Sums::Long };
    let by_query = by_query.turned(block.queries.clone());
    product(&mut Rows { slices: &rows, taps: 1 }, &by_query, output, &mut ());
    out
}

/// `out`, (queries, d): the rows of `by_key`, added up with the weights of each query, `weights`
/// (keys, queries).
fn over_keys(by_key: HeadRows<'_>, weights: Scratch, block: &Block, out: &mut [f32]) {
    let d = by_key.width;
    let width = block.width();
    let weights = Panels::of_rows(by_key.format, weights, block.keys.len(), width);
    let mut turned = Scratch::new(d * width);
    let starts = starts(turned.len(), width);
    let output =
        Output { values: &mut turned, starts: &starts, write: Write::Replace, sums: Sums::Long };
    let rows = by_key.rows(block.keys.clone());
    product(&mut Columns::new(&rows, d), &weights, output, &mut ());
    for (query, out) in out.chunks_exact_mut(d).enumerate() {
        for (out, turned) in out.iter_mut().zip(turned.chunks_exact(width)) {
            *out = turned[query];
        }
    }
}

/// `out`, (keys, d), grows by the rows of `by_query`, added up with the weights of each key,
/// `weights` (keys, queries).
fn add_over_queries(weights: &[f32], by_query: HeadRows<'_>, block: &Block, out: &mut [f32]) {
    let width = by_query.width;
    let out = &mut out[block.keys.start * width..block.keys.end * width];
    let starts = starts(out.len(), by_query.width);
    let rows: Vec<&[f32]> = weights.chunks_exact(block.width()).collect();
    let output = Output { values: out, starts: &starts, write: Write::Add, sums: Sums::Long };
    let by_query = by_query.panels(block.queries.clone());
    product(&mut Rows { slices: &rows, taps: 1 }, &by_query, output, &mut ());
}

/// Products of the rows of each query.
fn products_of_rows(x: HeadRows<'_>, y: HeadRows<'_>, block: &Block) -> PerQuery {
    let mut products = [0.0; QUERIES];
    for (product, query) in products.iter_mut().zip(block.queries.clone()) {
        let x = x.row(query);
        let y = y.row(query);
        *product = vectorised(
            #[inline(always)]
            || {
                sum_of_pairs(
                    x,
                    y,
                    #[inline(always)]
                    |x, y| x * y,
                )
            },
        ) as f32;
    }
    products
}

/// Products of queries and keys become scores: cap tanh(scale product / cap).
fn cap_scores(products: &mut [f32], scale: f32, cap: f32) {
    let factor = scale / cap;
    vectorised(
        #[inline(always)]
        || {
            for product in products.iter_mut() {
                *product = cap * tanh(*product * factor);
            }
        },
    );
}

/// Derivatives of [`cap_scores`].
fn slopes_of_cap(products: &[f32], scale: f32, cap: f32) -> Scratch {
    let factor = scale / cap;
    let mut slopes = Scratch::new(products.len());
    vectorised(
        #[inline(always)]
        || {
            for (slope, product) in slopes.iter_mut().zip(products) {
                let share = tanh(*product * factor);
                *slope = scale * (1.0 - share * share);
            }
        },
    );
    slopes
}

fn multiply(values: &mut [f32], factors: &[f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (value, factor) in values.iter_mut().zip(factors) {
                *value *= factor;
            }
        },
    );
}

/// First values of rows of `width` values.
fn starts(len: usize, width: usize) -> Vec<usize> {
    (0..len).step_by(width).collect()
}
