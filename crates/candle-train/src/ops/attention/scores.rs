//! Scores of a block of queries: a key per row, a query per column, so that a query's sums go down
//! its column.
//!
//! Such rows are what a product packs its right operand into: probabilities and their gradients are
//! multiplied where they lie, by tiles that are as wide as the block however narrow the heads are.

use std::ops::Range;

use crate::ops::math::exp;
use crate::ops::scratch::Scratch;
use crate::ops::simd::vectorised;
use crate::rng::Key;

/// Queries per block: the columns of a product's widest panel.
pub(super) const QUERIES: usize = 64;
/// Queries side by side in one register of any processor; rows are whole ones.
const LANES: usize = 16;
/// Keys whose exponentials are added in f32, before f64 takes over.
const F32_SUM: usize = 32;

/// One number of each query of a block.
pub(super) type PerQuery = [f32; QUERIES];

/// Softmax of a block, as backward gets it.
pub(super) struct Softmax {
    /// Logarithms of the sums over keys of the scores' exponentials.
    pub(super) log_sums: PerQuery,
    /// Sums over keys of probability times gradient.
    pub(super) means: PerQuery,
    /// Factor that makes scores of the products.
    pub(super) scale: f32,
}

/// A block of queries at work.
pub(super) struct Block {
    pub(super) queries: Range<usize>,
    /// Keys that any of them sees.
    pub(super) keys: Range<usize>,
    causal: bool,
    /// Keys that a query sees at most: itself and those before it.
    window: Option<usize>,
}

impl Block {
    /// The blocks of `t` queries over `s` keys.
    pub(super) fn all(
        t: usize,
        s: usize,
        causal: bool,
        window: Option<usize>,
    ) -> impl Iterator<Item = Self> {
        (0..t).step_by(QUERIES).map(move |first| {
            let queries = first..(first + QUERIES).min(t);
            let end = if causal { queries.end.min(s) } else { s };
            let start = window.map_or(0, |window| (first + 1).saturating_sub(window));
            Self { queries, keys: start..end, causal, window }
        })
    }

    /// Length of a row.
    pub(super) fn width(&self) -> usize {
        self.queries.len().next_multiple_of(LANES)
    }

    /// Length of all rows.
    pub(super) fn len(&self) -> usize {
        self.keys.len() * self.width()
    }

    /// Queries of the block that see the key of the row `row`.
    fn seeing(&self, row: usize) -> Range<usize> {
        let key = self.keys.start + row;
        let place = |query: usize| query.saturating_sub(self.queries.start).min(self.queries.len());
        let first = if self.causal { place(key) } else { 0 };
        first..self.window.map_or(self.queries.len(), |window| place(key + window))
    }

    /// Columns that hold no query become 0, and so that no query sees what it must not, `hidden`
    /// there.
    #[inline(always)]
    fn hide(&self, row: usize, values: &mut [f32], hidden: f32) {
        let seeing = self.seeing(row);
        values[..seeing.start].fill(hidden);
        values[seeing.end..].fill(hidden);
        values[self.queries.len()..].fill(0.0);
    }

    /// Scores become exponentials relative to the largest of their query. Returns for each query
    /// the logarithm of their sum, and one over the sum relative to the largest.
    pub(super) fn exponentials(&self, scores: &mut [f32], scale: f32) -> (PerQuery, PerQuery) {
        let mut largest = [f32::NEG_INFINITY; QUERIES];
        let mut totals = [0f64; QUERIES];
        let width = self.width();
        vectorised(
            #[inline(always)]
            || {
                for (at, row) in scores.chunks_exact_mut(width).enumerate() {
                    self.hide(at, row, f32::NEG_INFINITY);
                    for (largest, x) in largest[..width].iter_mut().zip(row) {
                        *largest = if *x > *largest { *x } else { *largest };
                    }
                }
                for rows in scores.chunks_mut(F32_SUM * width) {
                    let mut sums = [0f32; QUERIES];
                    for row in rows.chunks_exact_mut(width) {
                        let queries = sums[..width].iter_mut().zip(&largest[..width]);
                        for (x, (sum, largest)) in row.iter_mut().zip(queries) {
                            *x = exp((*x - *largest) * scale);
                            *sum += *x;
                        }
                    }
                    for (total, sum) in totals.iter_mut().zip(sums) {
                        *total += f64::from(sum);
                    }
                }
            },
        );
        let log_sum = |i: usize| (f64::from(largest[i] * scale) + totals[i].ln()) as f32;
        (std::array::from_fn(log_sum), totals.map(|total| (1.0 / total) as f32))
    }

    /// In backward: `p` holds scores and becomes the probabilities, `ds` holds the gradients of the
    /// probabilities and becomes those of the products.
    pub(super) fn pull_back(&self, p: &mut [f32], ds: &mut [f32], softmax: &Softmax) {
        let width = self.width();
        let Softmax { log_sums, means, scale } = *softmax;
        let [log_sums, means] =
            [&log_sums, &means].map(|of_queries| of_queries[..width].as_chunks::<LANES>().0);
        vectorised(
            #[inline(always)]
            || {
                let rows = p.chunks_exact_mut(width).zip(ds.chunks_exact_mut(width));
                for (at, (p, ds)) in rows.enumerate() {
                    self.hide(at, p, f32::NEG_INFINITY);
                    self.hide(at, ds, 0.0);
                    let p = p.as_chunks_mut::<LANES>().0;
                    let ds = ds.as_chunks_mut::<LANES>().0;
                    for ((p, ds), (log_sums, means)) in
                        p.iter_mut().zip(ds).zip(log_sums.iter().zip(means))
                    {
                        for lane in 0..LANES {
                            p[lane] = exp(p[lane].mul_add(scale, -log_sums[lane]));
                            ds[lane] = p[lane] * (ds[lane] - means[lane]) * scale;
                        }
                    }
                }
            },
        );
    }
}

/// Dropout of probabilities: number `first + query * keys + key` of `key` decides on one.
#[derive(Clone, Copy)]
pub(super) struct Dropout {
    pub(super) probability: f64,
    pub(super) key: Key,
    /// Number of the head's first probability.
    pub(super) first: usize,
    /// Keys of the head.
    pub(super) keys: usize,
}

impl Dropout {
    /// Factor of each probability of a block: 1 / (1 - p), or 0.
    pub(super) fn factors(&self, block: &Block) -> Scratch {
        let scale = 1.0 / (1.0 - self.probability);
        let scale = if scale.is_finite() { scale as f32 } else { 0.0 };
        let first = self.first + block.queries.start * self.keys + block.keys.start;
        let mut factors = Scratch::new(block.len());
        vectorised(
            #[inline(always)]
            || {
                for (key, row) in factors.chunks_exact_mut(block.width()).enumerate() {
                    for (query, factor) in row.iter_mut().enumerate() {
                        let number = (first + query * self.keys + key) as u64;
                        let is_kept = self.key.uniform(number) >= self.probability;
                        *factor = if is_kept { scale } else { 0.0 };
                    }
                }
            },
        );
        factors
    }
}
