//! One head of one sample, on one thread.

use std::ops::Range;

use crate::ops::kernel::{
    Columns, Output, Panels, Part, Rows, Source, Sums, Write, product, product_of_part,
};
use crate::ops::lanes::{maximum, sum, sum_of_pairs, vectorised};
use crate::ops::math::exp;
use crate::ops::scratch::Scratch;
use crate::rng::Key;

/// Queries per block: their scores stay in the second-level cache.
const QUERIES: usize = 48;

/// The head's part of an operand: row `i` is `values[i * stride..][..width]`.
#[derive(Clone, Copy)]
pub(super) struct HeadRows<'a> {
    pub(super) values: &'a [f32],
    pub(super) stride: usize,
    pub(super) length: usize,
    pub(super) width: usize,
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
        let values = self.values.get(range.start * self.stride..).unwrap_or_default();
        let source = Source { values, tap: 0, row: self.stride, column: 1 };
        Panels::pack(source, &[0], range.len(), self.width)
    }

    /// All rows, transposed, as a right operand: (width, rows).
    fn turned(self) -> Panels {
        let source = Source { values: self.values, tap: 0, row: 1, column: self.stride };
        Panels::pack(source, &[0], self.width, self.length)
    }
}

/// Queries (t, d), keys and values (s, d).
pub(super) struct Head<'a> {
    pub(super) q: HeadRows<'a>,
    pub(super) k: HeadRows<'a>,
    pub(super) v: HeadRows<'a>,
    pub(super) causal: bool,
    pub(super) dropout: Option<(f64, Key)>,
    /// Number of the head's first probability, for dropout.
    pub(super) first_element: usize,
}

/// Of one head, (length, d), zeroed.
pub(super) struct Gradients<'a> {
    pub(super) q: &'a mut [f32],
    pub(super) k: &'a mut [f32],
    pub(super) v: &'a mut [f32],
}

/// A block of queries at work.
struct Block {
    queries: Range<usize>,
    /// Keys that any of them sees.
    keys: usize,
}

impl Head<'_> {
    fn blocks(&self) -> impl Iterator<Item = Block> + use<> {
        let (t, s, causal) = (self.q.length, self.k.length, self.causal);
        (0..t).step_by(QUERIES).map(move |first| {
            let queries = first..(first + QUERIES).min(t);
            let keys = if causal { queries.end.min(s) } else { s };
            Block { queries, keys }
        })
    }

    /// Keys that a query sees.
    fn seen(&self, query: usize) -> usize {
        if self.causal { (query + 1).min(self.k.length) } else { self.k.length }
    }

    fn scale(&self) -> f32 {
        (1.0 / (self.q.width as f64).sqrt()) as f32
    }

    /// The result (t, d), and for each query the logarithm of its sum of exponentials.
    pub(super) fn forward(&self, y: &mut [f32], log_sums: &mut [f32]) {
        let (keys, values) = (self.k.turned(), self.v.panels(0..self.k.length));
        let (s, d) = (self.k.length, self.q.width);
        let mut scores = Scratch::new(QUERIES.min(self.q.length) * s);
        let mut kept = Scratch::new(s);
        for block in self.blocks() {
            self.products(self.q, &keys, &block, &mut scores);
            let mut shares = [0.0; QUERIES];
            for (i, query) in block.queries.clone().enumerate() {
                let row = &mut scores[i * s..][..block.keys];
                let seen = self.seen(query);
                let (log_sum, share) = vectorised(
                    #[inline(always)]
                    || exponentials(row, seen, self.scale()),
                );
                (log_sums[query], shares[i]) = (log_sum, share);
                if let Some(kept) = self.kept(query, seen, &mut kept) {
                    vectorised(
                        #[inline(always)]
                        || {
                            for (p, kept) in row.iter_mut().zip(kept) {
                                *p *= kept;
                            }
                        },
                    );
                }
            }
            let rows: Vec<&[f32]> = scores.chunks(s.max(1)).take(block.queries.len()).collect();
            let y = &mut y[block.queries.start * d..block.queries.end * d];
            let mut out = row_major(y, d, Write::Replace);
            let part = Part { depth: block.keys, columns: d };
            let mut rows = Rows { slices: &rows, taps: 1 };
            product_of_part(&mut rows, &values, part, out.output());
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
        gradients: &mut Gradients<'_>,
    ) {
        let (turned_k, k, turned_v) =
            (self.k.turned(), self.k.panels(0..self.k.length), self.v.turned());
        let (s, d) = (self.k.length, self.q.width);
        let mut p = Scratch::new(QUERIES.min(self.q.length) * s);
        let mut ds = Scratch::new(QUERIES.min(self.q.length) * s);
        let mut kept = Scratch::new(s);
        for block in self.blocks() {
            self.products(self.q, &turned_k, &block, &mut p);
            self.products(dy, &turned_v, &block, &mut ds);
            for (i, query) in block.queries.clone().enumerate() {
                let (p, ds) = (&mut p[i * s..][..block.keys], &mut ds[i * s..][..block.keys]);
                let seen = self.seen(query);
                let kept = self.kept(query, seen, &mut kept);
                let row = Row { seen, scale: self.scale(), log_sum: log_sums[query], kept };
                let (y, dy) = (y.row(query), dy.row(query));
                vectorised(
                    #[inline(always)]
                    || row.pull_back(p, ds, y, dy),
                );
            }
            let rows = block.queries.len();
            let p: Vec<&[f32]> = p.chunks(s.max(1)).take(rows).collect();
            let ds: Vec<&[f32]> = ds.chunks(s.max(1)).take(rows).collect();
            let dq = &mut gradients.q[block.queries.start * d..block.queries.end * d];
            let mut dq = row_major(dq, d, Write::Replace);
            let part = Part { depth: block.keys, columns: d };
            product_of_part(&mut Rows { slices: &ds, taps: 1 }, &k, part, dq.output());
            let mut dk = row_major(&mut gradients.k[..block.keys * d], d, Write::Add);
            let q = self.q.panels(block.queries.clone());
            product(&mut Columns::new(&ds, block.keys), &q, dk.output(), &mut ());
            let mut dv = row_major(&mut gradients.v[..block.keys * d], d, Write::Add);
            let dy = dy.panels(block.queries.clone());
            product(&mut Columns::new(&p, block.keys), &dy, dv.output(), &mut ());
        }
    }

    /// out (queries, s) = the block's rows of `left` times the keys that it sees.
    fn products(&self, left: HeadRows<'_>, keys: &Panels, block: &Block, out: &mut [f32]) {
        let rows = left.rows(block.queries.clone());
        let starts: Vec<usize> = (0..rows.len()).map(|i| i * self.k.length).collect();
        let part = Part { depth: left.width, columns: block.keys };
        let out = Output { values: out, starts: &starts, write: Write::Replace, sums: Sums::Long };
        product_of_part(&mut Rows { slices: &rows, taps: 1 }, keys, part, out);
    }

    /// What dropout multiplies each probability of a query by.
    fn kept<'k>(&self, query: usize, seen: usize, kept: &'k mut [f32]) -> Option<&'k [f32]> {
        let (p, key) = self.dropout?;
        let scale = if p < 1.0 { (1.0 / (1.0 - p)) as f32 } else { 0.0 };
        let first = self.first_element + query * self.k.length;
        let kept = &mut kept[..seen];
        for (i, kept) in kept.iter_mut().enumerate() {
            *kept = if key.uniform((first + i) as u64) >= p { scale } else { 0.0 };
        }
        Some(kept)
    }
}

/// Rows of `width` values one after the other.
struct RowMajor<'a> {
    values: &'a mut [f32],
    starts: Vec<usize>,
    write: Write,
}

fn row_major(values: &mut [f32], width: usize, write: Write) -> RowMajor<'_> {
    let starts = (0..values.len()).step_by(width).collect();
    RowMajor { values, starts, write }
}

impl RowMajor<'_> {
    fn output(&mut self) -> Output<'_> {
        Output { values: self.values, starts: &self.starts, write: self.write, sums: Sums::Long }
    }
}

/// Scores become exponentials relative to the largest; those beyond `seen` become 0. Returns the logarithm of
/// their sum, and one over the sum relative to the largest.
#[inline(always)]
fn exponentials(row: &mut [f32], seen: usize, scale: f32) -> (f32, f32) {
    let (row, unseen) = row.split_at_mut(seen);
    unseen.fill(0.0);
    let largest = maximum(row);
    for x in row.iter_mut() {
        *x = exp((*x - largest) * scale);
    }
    let total = sum(
        row,
        #[inline(always)]
        |x| x,
    );
    ((f64::from(largest * scale) + total.ln()) as f32, (1.0 / total) as f32)
}

/// One query in backward.
struct Row<'a> {
    seen: usize,
    scale: f32,
    log_sum: f32,
    kept: Option<&'a [f32]>,
}

impl Row<'_> {
    /// `p` holds products with keys and becomes the probabilities after dropout; `ds` holds their gradients and
    /// becomes those of the products.
    #[inline(always)]
    fn pull_back(&self, p: &mut [f32], ds: &mut [f32], y: &[f32], dy: &[f32]) {
        let ((p, p_unseen), (ds, ds_unseen)) =
            (p.split_at_mut(self.seen), ds.split_at_mut(self.seen));
        p_unseen.fill(0.0);
        ds_unseen.fill(0.0);
        // Sum over keys of probability times gradient, which is also that over the result.
        let mean = sum_of_pairs(
            y,
            dy,
            #[inline(always)]
            |y, dy| y * dy,
        ) as f32;
        for p in p.iter_mut() {
            *p = exp(p.mul_add(self.scale, -self.log_sum));
        }
        match self.kept {
            None => {
                for (p, ds) in p.iter().zip(ds) {
                    *ds = p * (*ds - mean) * self.scale;
                }
            }
            Some(kept) => {
                for ((p, ds), kept) in p.iter_mut().zip(ds).zip(kept) {
                    *ds = *p * (*ds * kept - mean) * self.scale;
                    *p *= kept;
                }
            }
        }
    }
}
