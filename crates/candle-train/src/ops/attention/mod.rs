//! Scaled dot-product attention: softmax(q k^T / sqrt(d)) v per head, without keeping the scores.
//!
//! A block of queries at a time sees all its keys; forward keeps the logarithm of each row's sum of
//! exponentials, from which backward computes the block's probabilities again (Dao et al., 2022,
//! <https://arxiv.org/abs/2205.14135>, section 3.1, with whole rows instead of blocks of keys).

mod head;
#[cfg(feature = "cuda")]
mod on_gpu;
mod scores;

use std::borrow::Cow;
use std::ops::Range;

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
use super::kernel::Format;
use super::operation::{Gradients, Input, Operation, SavedForBackward, add_multiplications};
use super::precision::{operand_of, round_block};
use super::scratch::zeros;
use super::segments::Segments;
use super::simd::build_rows;
use super::storage::{read, tensor};
use crate::Precision;
use crate::rng::Key;
use head::{Head, HeadGradients, HeadRows};
use scores::Dropout;

/// Options of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Heads; the width is divided among them.
    pub heads: usize,
    /// True if query i sees keys 0 to i only, as `is_causal` of PyTorch.
    pub causal: bool,
    /// Each probability is dropped with probability p, and the others are scaled by 1 / (1 - p):
    /// element i of the (batch, head, query, key) array is kept if number i of the key is at least
    /// p.
    pub dropout: Option<(f64, Key)>,
    /// Operands, result and gradients are rounded to it.
    pub precision: Precision,
}

/// Bounds of causal scores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScoreBounds {
    /// Query i sees the keys from i + 1 - window on: itself and those before it, so many together.
    pub window: Option<usize>,
    /// Scores s become cap tanh(s / cap), as in Gemma 2.
    pub softcap: Option<f64>,
}

/// `torch.nn.functional.scaled_dot_product_attention` with heads side by side: q (b, t, w), k and v
/// (b, s, w) -> (b, t, w), f32.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, attention: Attention) -> Result<Tensor> {
    attention_within([q, k, v], attention, None)
}

/// [`attention`] in which the queries of sample i see its first `lengths[i]` keys only, as with a
/// `key_padding_mask` of `torch.nn.MultiheadAttention` that hides the others. With lengths, the
/// CPU computes it.
pub fn attention_within(
    [q, k, v]: [&Tensor; 3],
    attention: Attention,
    lengths: Option<&[usize]>,
) -> Result<Tensor> {
    let ((b, t, w), (k_b, s, k_w)) = (q.dims3()?, k.dims3()?);
    if (k_b, k_w) != (b, w) || v.dims() != k.dims() {
        bail!("queries {:?}, keys {:?} and values {:?}", q.dims(), k.dims(), v.dims());
    }
    let op = Heads::new(attention, Sizes { b, t, s, w }, [q, k, v].iter().any(|x| x.track_op()))?;
    chain::apply([q, k, v], SeparateQkv(op.within(lengths)?))
}

/// [`attention`] in samples of several texts, of which each sees itself alone: as many queries as
/// keys. With segments, the CPU computes it.
pub fn attention_in(
    segments: Option<&Segments>,
    [q, k, v]: [&Tensor; 3],
    attention: Attention,
) -> Result<Tensor> {
    attention_bounded(segments, [q, k, v], attention, ScoreBounds::default())
}

/// [`attention_in`] within bounds of its scores. With bounds that change something, the CPU computes
/// it.
pub fn attention_bounded(
    segments: Option<&Segments>,
    [q, k, v]: [&Tensor; 3],
    attention: Attention,
    bounds: ScoreBounds,
) -> Result<Tensor> {
    let ((b, t, w), tracked) = (q.dims3()?, [q, k, v].iter().any(|x| x.track_op()));
    if k.dims() != q.dims() || v.dims() != q.dims() {
        bail!("queries {:?}, keys {:?} and values {:?}", q.dims(), k.dims(), v.dims());
    }
    let op = Heads::new(attention, Sizes { b, t, s: t, w }, tracked)?.bounded(bounds)?;
    chain::apply([q, k, v], SeparateQkv(op.in_segments(segments)?))
}

/// [`attention_in`] of queries, keys and values that lie side by side.
pub fn attention_packed_in(
    segments: Option<&Segments>,
    qkv: &Tensor,
    attention: Attention,
) -> Result<Tensor> {
    let (b, t, columns) = qkv.dims3()?;
    if columns % 3 != 0 {
        bail!("queries, keys and values in {columns} columns");
    }
    let op = Heads::new(attention, Sizes { b, t, s: t, w: columns / 3 }, qkv.track_op())?;
    chain::apply([qkv], PackedQkv(op.in_segments(segments)?))
}

/// [`attention`] of queries, keys and values that lie side by side: qkv (b, t, 3 w) -> (b, t, w).
pub fn attention_packed(qkv: &Tensor, attention: Attention) -> Result<Tensor> {
    attention_packed_within(qkv, attention, None)
}

/// [`attention_within`] of queries, keys and values that lie side by side.
pub fn attention_packed_within(
    qkv: &Tensor,
    attention: Attention,
    lengths: Option<&[usize]>,
) -> Result<Tensor> {
    let (b, t, columns) = qkv.dims3()?;
    if columns % 3 != 0 {
        bail!("queries, keys and values in {columns} columns");
    }
    let op = Heads::new(attention, Sizes { b, t, s: t, w: columns / 3 }, qkv.track_op())?;
    chain::apply([qkv], PackedQkv(op.within(lengths)?))
}

/// Batch, queries, keys and width.
#[derive(Clone, Copy)]
struct Sizes {
    b: usize,
    t: usize,
    s: usize,
    w: usize,
}

struct Heads {
    attention: Attention,
    sizes: Sizes,
    /// Keys that the queries of each sample see; all of them if it is empty.
    lengths: Vec<usize>,
    /// Texts of each sample, which see themselves alone; `None` = each sample is one.
    segments: Option<Segments>,
    bounds: ScoreBounds,
    /// Logarithm of the sum of exponentials of each (batch, head, query).
    log_sums: Option<SavedForBackward<Vec<f32>>>,
}

/// One operand: (b, length, columns), of which the heads' values begin at column `first`.
#[derive(Clone, Copy)]
struct Operand<'a> {
    values: &'a [f32],
    length: usize,
    columns: usize,
    first: usize,
}

impl Heads {
    fn new(attention: Attention, sizes: Sizes, tracked: bool) -> Result<Self> {
        let heads = attention.heads;
        if heads == 0 || sizes.w == 0 || !sizes.w.is_multiple_of(heads) {
            bail!("a width of {} for {heads} heads", sizes.w);
        }
        if let Some((p, _)) = attention.dropout
            && !(0.0..=1.0).contains(&p)
        {
            bail!("a dropout probability of {p}");
        }
        add_multiplications(2 * sizes.b * sizes.t * sizes.s * sizes.w);
        let log_sums = tracked.then(SavedForBackward::default);
        let bounds = ScoreBounds::default();
        Ok(Self { attention, sizes, lengths: Vec::new(), segments: None, bounds, log_sums })
    }

    /// Bounds the scores. A window that is no shorter than the samples is none.
    fn bounded(self, bounds: ScoreBounds) -> Result<Self> {
        let ScoreBounds { window, softcap } = bounds;
        let is_wrong = window == Some(0) || softcap.is_some_and(|cap| cap.is_nan() || cap <= 0.0);
        if is_wrong || window.is_some() && !self.attention.causal {
            bail!("scores within {bounds:?}");
        }
        let window = window.filter(|&window| window < self.sizes.s);
        Ok(Self { bounds: ScoreBounds { window, softcap }, ..self })
    }

    /// Limits each text of a sample to itself.
    fn in_segments(self, segments: Option<&Segments>) -> Result<Self> {
        let Some(segments) = segments else { return Ok(self) };
        segments.check(self.sizes.b, self.sizes.t)?;
        Ok(Self { segments: Some(segments.clone()), ..self })
    }

    /// Queries and keys of each text of the sample of a head, by its index.
    fn texts(&self, index: usize) -> Vec<Range<usize>> {
        let t = self.sizes.t;
        match &self.segments {
            Some(segments) => segments.of(index / self.attention.heads, t).collect(),
            None => std::iter::once(0..t).collect(),
        }
    }

    /// Limits each sample to its first keys, as many as its length.
    fn within(self, lengths: Option<&[usize]>) -> Result<Self> {
        let Sizes { b, s, .. } = self.sizes;
        let Some(lengths) = lengths else { return Ok(self) };
        if lengths.len() != b || lengths.iter().any(|length| !(1..=s).contains(length)) {
            bail!("{b} samples of {s} keys, of which {lengths:?} are seen");
        }
        Ok(Self { lengths: lengths.to_vec(), ..self })
    }

    fn head_width(&self) -> usize {
        self.sizes.w / self.attention.heads
    }

    /// Format of the products with rows of a head.
    fn format(&self) -> Format {
        Format::of_depth(self.attention.precision, self.head_width())
    }

    /// These values as operands of a product.
    fn multiplied<'a>(&self, values: &'a [f32]) -> Cow<'a, [f32]> {
        operand_of(self.format(), values, self.attention.precision)
    }

    fn head<'a>(&self, index: usize, [q, k, v]: [Operand<'a>; 3]) -> Head<'a> {
        let heads = self.attention.heads;
        let d = self.head_width();
        let seen = self.lengths.get(index / heads).copied();
        let rows = |x: Operand<'a>| HeadRows {
            values: x
                .values
                .get(index / heads * x.length * x.columns + x.first + index % heads * d..)
                .unwrap_or_default(),
            stride: x.columns,
            length: x.length,
            width: d,
            format: self.format(),
        };
        Head {
            q: rows(q),
            k: HeadRows { length: seen.unwrap_or(k.length), ..rows(k) },
            v: HeadRows { length: seen.unwrap_or(v.length), ..rows(v) },
            causal: self.attention.causal,
            bounds: self.bounds,
            dropout: self.attention.dropout.map(|(probability, key)| Dropout {
                probability,
                key,
                first: index * self.sizes.t * self.sizes.s,
                keys: self.sizes.s,
            }),
        }
    }

    /// A head of one text of its sample; the head itself where samples are one text.
    fn of_text<'a>(&self, head: Head<'a>, text: &Range<usize>) -> Head<'a> {
        if self.segments.is_none() {
            return head;
        }
        let dropout = head.dropout.map(|dropout| Dropout {
            first: dropout.first + text.start * (self.sizes.s + 1),
            ..dropout
        });
        let [q, k, v] = [head.q, head.k, head.v].map(|rows| rows.part(text.clone()));
        Head { q, k, v, dropout, ..head }
    }

    fn forward(&self, operands: [Operand<'_>; 3]) -> (Vec<f32>, Shape) {
        let (Sizes { b, t, w, .. }, heads) = (self.sizes, self.attention.heads);
        let mut by_head = zeros(b * t * w);
        let mut log_sums = vec![0.0; b * heads * t];
        let tasks = by_head.par_chunks_mut((t * self.head_width()).max(1));
        tasks.zip(log_sums.par_chunks_mut(t.max(1))).enumerate().for_each(|(i, (y, log_sums))| {
            let d = self.head_width();
            for text in self.texts(i) {
                let y = &mut y[text.start * d..text.end * d];
                let head = self.head(i, operands);
                self.of_text(head, &text).forward(y, &mut log_sums[text]);
            }
        });
        let y = self.placed([&by_head], t);
        if let Some(kept) = &self.log_sums {
            kept.keep(log_sums);
        }
        (y, Shape::from((b, t, w)))
    }

    /// Gradients of queries, keys and values, each (b, heads, length, d).
    fn backward(&self, operands: [Operand<'_>; 3], y: &[f32], dy: &[f32]) -> Result<[Vec<f32>; 3]> {
        let Sizes { b, t, s, w } = self.sizes;
        let Some(log_sums) = self.log_sums.as_ref().and_then(SavedForBackward::get) else {
            bail!("attention kept nothing for its backward")
        };
        let mut gradients = [zeros(b * t * w), zeros(b * s * w), zeros(b * s * w)];
        let [q, k, v] = &mut gradients;
        let d = self.head_width();
        let operand = |values| Operand { values, length: t, columns: w, first: 0 };
        let tasks = q.par_chunks_mut((t * d).max(1));
        let tasks = tasks.zip(k.par_chunks_mut((s * d).max(1)));
        tasks.zip(v.par_chunks_mut((s * d).max(1))).enumerate().for_each(|(i, ((q, k), v))| {
            let log_sums = &log_sums[i * t..(i + 1) * t];
            for text in self.texts(i) {
                let result = self.head(i, [operand(y), operand(dy), operand(dy)]);
                let result = self.of_text(result, &text);
                let [q, k, v] = [&mut *q, &mut *k, &mut *v].map(|gradient| match self.segments {
                    Some(_) => &mut gradient[text.start * d..text.end * d],
                    None => gradient,
                });
                let head = self.of_text(self.head(i, operands), &text);
                let mut gradients = HeadGradients { q, k, v };
                head.backward(result.q, result.k, &log_sums[text], &mut gradients);
            }
        });
        Ok(gradients)
    }

    /// `N` times (b, heads, length, d), side by side as (b, length, N w), and rounded.
    fn placed<const N: usize>(&self, by_head: [&[f32]; N], length: usize) -> Vec<f32> {
        let heads = self.attention.heads;
        let d = self.head_width();
        let w = self.sizes.w;
        build_rows(self.sizes.b * length * N * w, N * w, |start, tokens| {
            for (i, token) in tokens.chunks_exact_mut(N * w).enumerate() {
                let token_at = start / (N * w) + i;
                for (part, by_head) in token.chunks_exact_mut(w).zip(by_head) {
                    for (head, out) in part.chunks_exact_mut(d).enumerate() {
                        let row = (token_at / length * heads + head) * length + token_at % length;
                        out.copy_from_slice(&by_head[row * d..][..d]);
                    }
                }
            }
            round_block(tokens, self.attention.precision);
        })
    }

    fn separate<'a>(&self, q: &'a [f32], k: &'a [f32], v: &'a [f32]) -> [Operand<'a>; 3] {
        let Sizes { t, s, w, .. } = self.sizes;
        let operand = |values, length| Operand { values, length, columns: w, first: 0 };
        [operand(q, t), operand(k, s), operand(v, s)]
    }

    fn packed<'a>(&self, qkv: &'a [f32]) -> [Operand<'a>; 3] {
        let Sizes { t, w, .. } = self.sizes;
        [0, w, 2 * w].map(|first| Operand { values: qkv, length: t, columns: 3 * w, first })
    }
}

struct SeparateQkv(Heads);

impl Operation for SeparateQkv {
    type Operands<T> = [T; 3];

    const NAME: &'static str = "attention";

    fn forward(&self, operands: [Input<'_>; 3]) -> Result<(Vec<f32>, Shape)> {
        let [q, k, v] = operands.map(|x| self.0.multiplied(x.values));
        Ok(self.0.forward(self.0.separate(&q, &k, &v)))
    }

    fn backward(&self, [q, k, v]: [&Tensor; 3], y: &Tensor, dy: Tensor) -> Gradients<Self> {
        let Sizes { b, t, s, w } = self.0.sizes;
        let by_head = read([q, k, v, y, &dy], |[q, k, v, y, dy]| {
            let [q, k, v, dy] = [q, k, v, dy].map(|x| self.0.multiplied(x));
            self.0.backward(self.0.separate(&q, &k, &v), y, &dy)
        })?;
        let place = |by_head: &[f32], length| {
            tensor(self.0.placed([by_head], length), (b, length, w)).map(Some)
        };
        let [q, k, v] = by_head;
        Ok([place(&q, t)?, place(&k, s)?, place(&v, s)?])
    }
}

struct PackedQkv(Heads);

impl Operation for PackedQkv {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "attention-packed";

    fn forward(&self, [qkv]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let qkv = self.0.multiplied(qkv.values);
        Ok(self.0.forward(self.0.packed(&qkv)))
    }

    fn backward(&self, [qkv]: [&Tensor; 1], y: &Tensor, dy: Tensor) -> Gradients<Self> {
        let by_head = read([qkv, y, &dy], |[qkv, y, dy]| {
            let [qkv, dy] = [qkv, dy].map(|x| self.0.multiplied(x));
            self.0.backward(self.0.packed(&qkv), y, &dy)
        })?;
        let gradient = self.0.placed(by_head.each_ref().map(Vec::as_slice), self.0.sizes.t);
        Ok([Some(tensor(gradient, qkv.shape())?)])
    }
}

#[cfg(test)]
mod tests;
