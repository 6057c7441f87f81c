//! A Conformer block (Gulati et al., 2020) with relative positions (Dai et al., 2019), as NVIDIA
//! `NeMo` writes it: half a feed-forward part, attention, convolution, half a feed-forward part,
//! and a norm.
//!
//! Keys: `norm_feed_forward1`, `feed_forward1.linear{1,2}`, `norm_conv`,
//! `conv.{pointwise_conv1,depthwise_conv,batch_norm, pointwise_conv2}`, `norm_self_att`,
//! `self_attn.{pos_bias_u,pos_bias_v,linear_q,linear_k,linear_v,linear_out,linear_pos}`,
//! `norm_feed_forward2`, `feed_forward2.linear{1,2}`, `norm_out`, registered in this order.

use candle_core::{Error, Result, Tensor, bail};

use crate::frames::{Frames, FramesOnnx};
use crate::model::check_heads;
use crate::nn::{
    BatchNorm2d, Builder, Conv1d, ConvShape, Dropout, ForwardContext, Init, LayerNorm, Linear,
    Nonlinearity, Param,
};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Activation, Window};

/// Attention score of a pair of frames of which one is padding.
const MASKED_SCORE: f64 = -1e4;

/// Sizes of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) width: usize,
    pub(crate) heads: usize,
    pub(crate) kernel: usize,
    /// Frames of a sample.
    pub(crate) frames: usize,
    pub(crate) dropout: f64,
}

pub(crate) struct Block {
    norms: [LayerNorm; 5],
    feed_forward: [FeedForward; 2],
    attention: RelativeAttention,
    conv: Convolution,
    dropout: Dropout,
    after_attention: Dropout,
    after_conv: Dropout,
    after_second: Dropout,
}

impl Block {
    pub(crate) fn new(builder: &Builder, sizes: Sizes) -> Result<Self> {
        let norm = |name: &str| LayerNorm::new(&builder.pp(name), sizes.width);
        let dropout = |name: &str| Dropout::new(&builder.pp(name), sizes.dropout);
        let feed_forward = |name: &str| FeedForward::new(&builder.pp(name), sizes);
        let norm1 = norm("norm_feed_forward1")?;
        let feed_forward1 = feed_forward("feed_forward1")?;
        let norm_conv = norm("norm_conv")?;
        let conv = Convolution::new(&builder.pp("conv"), sizes)?;
        let norm_attention = norm("norm_self_att")?;
        let attention = RelativeAttention::new(&builder.pp("self_attn"), sizes)?;
        let norm2 = norm("norm_feed_forward2")?;
        let feed_forward2 = feed_forward("feed_forward2")?;
        Ok(Self {
            norms: [norm1, norm_attention, norm_conv, norm2, norm("norm_out")?],
            feed_forward: [feed_forward1, feed_forward2],
            attention,
            conv,
            dropout: dropout("dropout.0"),
            after_attention: dropout("dropout.1"),
            after_conv: dropout("dropout.2"),
            after_second: dropout("dropout.3"),
        })
    }

    /// x (n, frames, width) -> the same shape; `positions` (2 frames - 1, width).
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        positions: &Tensor,
        frames: &Frames,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let [norm1, norm_attention, norm_conv, norm2, norm_out] = &self.norms;
        let half = |part: &FeedForward, norm: &LayerNorm, x: &Tensor, dropout: &Dropout| {
            let inner = |x: &Tensor| dropout.forward(&part.forward(&norm.forward(x)?, pass)?, pass);
            ops::chain(x, |x| ops::add(x, &ops::scale(&inner(x)?, 0.5)?))
        };
        let x = half(&self.feed_forward[0], norm1, x, &self.dropout)?;
        let attended =
            self.attention.forward(&norm_attention.forward(&x)?, positions, frames, pass)?;
        let x = ops::add(&x, &self.after_attention.forward(&attended, pass)?)?;
        let convolved = self.conv.forward(&norm_conv.forward(&x)?, frames, pass)?;
        let x = ops::add(&x, &self.after_conv.forward(&convolved, pass)?)?;
        norm_out.forward(&half(&self.feed_forward[1], norm2, &x, &self.after_second)?)
    }

    /// [`Block::forward`] in a graph of ONNX.
    pub(crate) fn onnx(
        &self,
        graph: &mut Graph,
        x: &Value,
        positions: &Value,
        frames: &FramesOnnx,
    ) -> Result<Value> {
        let [norm1, norm_attention, norm_conv, norm2, norm_out] = &self.norms;
        let half = |graph: &mut Graph, part: &FeedForward, norm: &LayerNorm, x: &Value| {
            let y = norm.onnx(graph, x)?;
            let y = part.onnx(graph, &y)?;
            let y = graph.scaled(&y, 0.5);
            Ok::<_, Error>(graph.add(x, &y))
        };
        let x = half(graph, &self.feed_forward[0], norm1, x)?;
        let y = norm_attention.onnx(graph, &x)?;
        let attended = self.attention.onnx(graph, &y, positions, frames)?;
        let x = graph.add(&x, &attended);
        let y = norm_conv.onnx(graph, &x)?;
        let convolved = self.conv.onnx(graph, &y, frames)?;
        let x = graph.add(&x, &convolved);
        let x = half(graph, &self.feed_forward[1], norm2, &x)?;
        norm_out.onnx(graph, &x)
    }
}

/// Linear, `SiLU`, dropout, linear.
struct FeedForward {
    linear1: Linear,
    dropout: Dropout,
    linear2: Linear,
}

impl FeedForward {
    fn new(builder: &Builder, Sizes { width, dropout, .. }: Sizes) -> Result<Self> {
        Ok(Self {
            linear1: Linear::new(&builder.pp("linear1"), width, 4 * width)?,
            dropout: Dropout::new(&builder.pp("dropout"), dropout),
            linear2: Linear::new(&builder.pp("linear2"), 4 * width, width)?,
        })
    }

    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let inner = Nonlinearity::Silu.forward(&self.linear1.forward(x, pass)?)?;
        self.linear2.forward(&self.dropout.forward(&inner, pass)?, pass)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let inner = self.linear1.onnx(graph, x)?;
        let inner = Nonlinearity::Silu.onnx(graph, &inner);
        self.linear2.onnx(graph, &inner)
    }
}

/// Attention whose scores depend on the content of frames and on their distance.
struct RelativeAttention {
    heads: usize,
    bias_u: Param,
    bias_v: Param,
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    position: Linear,
    dropout: Dropout,
}

impl RelativeAttention {
    fn new(builder: &Builder, Sizes { width, heads, dropout, .. }: Sizes) -> Result<Self> {
        check_heads(width, heads)?;
        let bias = |name| builder.param(name, &[heads, width / heads], Init::Constant(0.0));
        let linear = |name: &str| Linear::new(&builder.pp(name), width, width);
        Ok(Self {
            heads,
            bias_u: bias("pos_bias_u")?,
            bias_v: bias("pos_bias_v")?,
            query: linear("linear_q")?,
            key: linear("linear_k")?,
            value: linear("linear_v")?,
            out: linear("linear_out")?,
            position: Linear::without_bias(&builder.pp("linear_pos"), width, width)?,
            dropout: Dropout::new(&builder.pp("dropout"), dropout),
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        positions: &Tensor,
        frames: &Frames,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let (n, t, width) = x.dims3()?;
        let heads = self.heads;
        let each = width / self.heads;
        // (n, t, width) -> (n, heads, t, each)
        let split = |x: Tensor| ops::transpose_adjacent(&x.reshape((n, t, heads, each))?, 1);
        let query = self.query.forward(x, pass)?.reshape((n, t, heads, each))?;
        let biased =
            |bias: &Param| ops::transpose_adjacent(&query.broadcast_add(&bias.tensor()?)?, 1);
        let key = split(self.key.forward(x, pass)?)?;
        let value = split(self.value.forward(x, pass)?)?;
        let position_keys = self.position.forward(positions, pass)?;
        let position_keys =
            ops::transpose_adjacent(&position_keys.reshape((2 * t - 1, heads, each))?, 0)?;
        let content = biased(&self.bias_u)?.matmul(&ops::transpose_adjacent(&key, 2)?)?;
        let position_keys = ops::transpose_adjacent(&position_keys, 1)?.unsqueeze(0)?;
        let position_keys =
            position_keys.broadcast_as((n, heads, each, 2 * t - 1))?.contiguous()?;
        let distance = shift(&biased(&self.bias_v)?.matmul(&position_keys)?)?;
        let scores = ops::scale(&ops::add(&content, &distance)?, 1.0 / (each as f64).sqrt())?;
        let shares = ops::softmax(&frames.hide_pairs(&scores, MASKED_SCORE)?)?;
        let shares = self.dropout.forward(&frames.hide_pairs(&shares, 0.0)?, pass)?;
        let attended =
            ops::transpose_adjacent(&shares.matmul(&value)?, 1)?.reshape((n, t, width))?;
        self.out.forward(&attended, pass)
    }

    /// [`RelativeAttention::forward`] in a graph of ONNX.
    fn onnx(
        &self,
        graph: &mut Graph,
        x: &Value,
        positions: &Value,
        frames: &FramesOnnx,
    ) -> Result<Value> {
        let t = x.dims()[1].unwrap_or(1);
        let width = x.features();
        let heads = self.heads as i64;
        let each = (width / self.heads) as i64;
        let query = self.query.onnx(graph, x)?;
        let key = self.key.onnx(graph, x)?;
        let value = self.value.onnx(graph, x)?;
        let [query, key, value] =
            [query, key, value].map(|part| graph.reshaped(&part, &[0, 0, heads, each]));
        let key = graph.transposed(&key, &[0, 2, 3, 1]);
        let value = graph.transposed(&value, &[0, 2, 1, 3]);
        let biased = |graph: &mut Graph, bias: &Param| {
            let bias = bias.onnx(graph)?;
            let biased = graph.add(&query, &bias);
            Ok::<_, Error>(graph.transposed(&biased, &[0, 2, 1, 3]))
        };
        let content = biased(graph, &self.bias_u)?;
        let distance = biased(graph, &self.bias_v)?;
        let content = graph.matmul(&content, &key);
        let position_keys = self.position.onnx(graph, positions)?;
        let position_keys = graph.reshaped(&position_keys, &[0, heads, each]);
        let position_keys = graph.transposed(&position_keys, &[1, 2, 0]);
        let distance = graph.matmul(&distance, &position_keys);
        let distance = shift_onnx(graph, &distance, t, self.heads);
        let scores = graph.add(&content, &distance);
        let scores = graph.scaled(&scores, 1.0 / (each as f64).sqrt());
        let scores = frames.hide_pairs(graph, &scores, MASKED_SCORE);
        let shares = graph.softmax(&scores);
        let shares = frames.hide_pairs(graph, &shares, 0.0);
        let attended = graph.matmul(&shares, &value);
        let attended = graph.transposed(&attended, &[0, 2, 1, 3]);
        let attended = graph.reshaped(&attended, &[0, 0, width as i64]);
        self.out.onnx(graph, &attended)
    }
}

/// [`shift`] in a graph of ONNX.
fn shift_onnx(graph: &mut Graph, x: &Value, t: usize, heads: usize) -> Value {
    let padded = graph.padded(x, 3, 1, 0);
    let padded = graph.shaped(&padded, &[heads, 2 * t, t]);
    let shifted = graph.narrowed(&padded, 2, 1, 2 * t - 1);
    let shifted = graph.shaped(&shifted, &[heads, t, 2 * t - 1]);
    graph.narrowed(&shifted, 3, 0, t)
}

/// From scores by distance, (n, heads, t, 2 t - 1) from far ahead to far behind, to scores by key,
/// (n, heads, t, t).
fn shift(x: &Tensor) -> Result<Tensor> {
    let (n, heads, t, distances) = x.dims4()?;
    let first = Tensor::zeros((n, heads, t, 1), x.dtype(), x.device())?;
    let padded = Tensor::cat(&[&first, x], 3)?.reshape((n, heads, distances + 1, t))?;
    let shifted = ops::narrow(&padded, 2, 1, distances)?;
    ops::narrow(&shifted.reshape((n, heads, t, distances))?, 3, 0, t)
}

/// Pointwise, gate, depthwise, batch norm, `SiLU`, pointwise.
struct Convolution {
    pointwise1: Conv1d,
    depthwise: Conv1d,
    norm: BatchNorm2d,
    pointwise2: Conv1d,
}

impl Convolution {
    fn new(builder: &Builder, Sizes { width, kernel, frames, .. }: Sizes) -> Result<Self> {
        if kernel.is_multiple_of(2) {
            bail!("`kernel_size` must be odd, not {kernel}");
        }
        let shape = |outputs, kernel: usize, groups| {
            let window = Window { stride: 1, padding: kernel / 2 };
            ConvShape { inputs: width, outputs, kernel, window, groups }
        };
        Ok(Self {
            pointwise1: Conv1d::new(&builder.pp("pointwise_conv1"), shape(2 * width, 1, 1))?,
            depthwise: Conv1d::new(&builder.pp("depthwise_conv"), shape(width, kernel, width))?,
            norm: BatchNorm2d::new(&builder.pp("batch_norm"), width, frames, 1.0)?,
            pointwise2: Conv1d::new(&builder.pp("pointwise_conv2"), shape(width, 1, 1))?,
        })
    }

    fn forward(&self, x: &Tensor, frames: &Frames, pass: &ForwardContext) -> Result<Tensor> {
        let width = x.dim(2)?;
        let x = self.pointwise1.forward(x, pass)?;
        let gate = Nonlinearity::Sigmoid.forward(&ops::narrow(&x, 2, width, width)?)?;
        let x = frames.hide(&ops::product(&ops::narrow(&x, 2, 0, width)?, &gate)?)?;
        let x = self.depthwise.forward(&x, pass)?.unsqueeze(2)?;
        let x = self.norm.forward(&x, None, Activation::Identity, pass)?.squeeze(2)?;
        self.pointwise2.forward(&Nonlinearity::Silu.forward(&x)?, pass)
    }

    /// [`Convolution::forward`] in a graph of ONNX.
    fn onnx(&self, graph: &mut Graph, x: &Value, frames: &FramesOnnx) -> Result<Value> {
        let width = x.features();
        let x = self.pointwise1.onnx(graph, x, 0)?;
        let [x, gate] = [0, width].map(|first| graph.narrowed(&x, 2, first, width));
        let gate = Nonlinearity::Sigmoid.onnx(graph, &gate);
        let x = graph.mul(&x, &gate);
        let x = frames.hide(graph, &x);
        let x = self.depthwise.onnx(graph, &x, 0)?;
        let x = self.norm.onnx(graph, &x, Activation::Identity)?;
        let x = Nonlinearity::Silu.onnx(graph, &x);
        self.pointwise2.onnx(graph, &x, 0)
    }
}
