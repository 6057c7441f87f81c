//! The post-norm encoder layer of the Informer family, as `iTransformer` and `PatchTST` use it:
//! attention, then two convolutions of width 1, each with dropout, a residual and a layer norm.
//!
//! Keys of layer i: `attn_layers.{i}.attention.{query,key,value,out}_projection`, `.conv1`,
//! `.conv2`, `.norm1`, `.norm2`.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::architecture::check_heads;
use crate::nn::{
    self, Builder, Conv1d, ConvShape, Dropout, ForwardContext, LayerNorm, Linear, Nonlinearity,
};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Attention, Window};

const PROJECTIONS: [&str; 4] =
    ["query_projection", "key_projection", "value_projection", "out_projection"];

/// Sizes of an encoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) width: usize,
    pub(super) heads: usize,
    /// Width inside the feed-forward part.
    pub(super) inner: usize,
    pub(super) layers: usize,
    pub(super) dropout: f64,
}

pub(super) struct Encoder(Vec<Arc<Layer>>);

impl Encoder {
    /// Registers the layers below `builder`.
    pub(super) fn new(sizes: Sizes, builder: &Builder) -> Result<Self> {
        let layers = builder.pp("attn_layers");
        let layer = |i| Layer::new(sizes, &layers.pp(i)).map(Arc::new);
        Ok(Self((0..sizes.layers).map(layer).collect::<Result<_>>()?))
    }

    /// (b, tokens, `d_model`) -> the same shape.
    pub(super) fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let layer = |x: Tensor, layer| nn::run_block(layer, &x, pass);
        ops::chain(x, |x| self.0.iter().try_fold(x.clone(), layer))
    }

    /// [`Encoder::forward`] in a graph of ONNX.
    pub(super) fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        self.0.iter().try_fold(x.clone(), |x, layer| layer.onnx(graph, &x))
    }
}

struct Layer {
    attention: MultiHead,
    conv1: Conv1d,
    conv2: Conv1d,
    norm1: LayerNorm,
    norm2: LayerNorm,
    dropouts: [Dropout; 3],
}

impl Layer {
    fn new(sizes: Sizes, builder: &Builder) -> Result<Self> {
        let Sizes { width, heads, inner, dropout: p, .. } = sizes;
        let conv = |name: &str, inputs, outputs| {
            let window = Window { stride: 1, padding: 0 };
            let shape = ConvShape { inputs, outputs, kernel: 1, window, groups: 1 };
            Conv1d::new(&builder.pp(name), shape)
        };
        Ok(Self {
            attention: MultiHead::new(&builder.pp("attention"), PROJECTIONS, width, heads, p)?,
            conv1: conv("conv1", width, inner)?,
            conv2: conv("conv2", inner, width)?,
            norm1: LayerNorm::new(&builder.pp("norm1"), width)?,
            norm2: LayerNorm::new(&builder.pp("norm2"), width)?,
            dropouts: [1, 2, 3].map(|i| Dropout::new(&builder.pp(format!("dropout{i}")), p)),
        })
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let attended = self.attention.onnx(graph, [x, x, x])?;
        let sum = graph.add(x, &attended);
        let x = self.norm1.onnx(graph, &sum)?;
        let y = self.conv1.onnx(graph, &x, 0)?;
        let y = Nonlinearity::Gelu.onnx(graph, &y);
        let y = self.conv2.onnx(graph, &y, 0)?;
        let sum = graph.add(&x, &y);
        self.norm2.onnx(graph, &sum)
    }
}

impl nn::Block for Layer {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let [after_attention, inside, last] = &self.dropouts;
        let attended = self.attention.forward(x, x, x, pass)?;
        let x = self.norm1.forward_sum(x, &after_attention.forward(&attended, pass)?)?;
        let y = inside.forward(&ops::gelu(&self.conv1.forward(&x, pass)?)?, pass)?;
        let y = last.forward(&self.conv2.forward(&y, pass)?, pass)?;
        self.norm2.forward_sum(&x, &y)
    }
}

/// Multi-head attention with linear layers for queries, keys, values and output, under the names of
/// the original.
pub(super) struct MultiHead {
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    heads: usize,
    dropout: Dropout,
}

impl MultiHead {
    /// Registers the layers of queries, keys, values and output under `names`, in this order.
    /// `dropout` applies to the probabilities.
    pub(super) fn new(
        builder: &Builder,
        names: [&str; 4],
        width: usize,
        heads: usize,
        dropout: f64,
    ) -> Result<Self> {
        check_heads(width, heads)?;
        let linear = |name: &str| Linear::new(&builder.pp(name), width, width);
        let [q, k, v, out] = names;
        Ok(Self {
            q: linear(q)?,
            k: linear(k)?,
            v: linear(v)?,
            out: linear(out)?,
            heads,
            dropout: Dropout::new(builder, dropout),
        })
    }

    /// q (b, t, width), k and v (b, s, width) -> (b, t, width).
    pub(super) fn forward(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let dropout = self.dropout.drawn(pass);
        let options =
            Attention { heads: self.heads, causal: false, dropout, precision: pass.precision };
        let q = self.q.forward(q, pass)?;
        let k = self.k.forward(k, pass)?;
        let v = self.v.forward(v, pass)?;
        self.out.forward(&ops::attention(&q, &k, &v, options)?, pass)
    }

    /// [`MultiHead::forward`] in a graph of ONNX.
    pub(super) fn onnx(&self, graph: &mut Graph, [q, k, v]: [&Value; 3]) -> Result<Value> {
        let q = self.q.onnx(graph, q)?;
        let k = self.k.onnx(graph, k)?;
        let v = self.v.onnx(graph, v)?;
        let y = graph.attention([&q, &k, &v], self.heads, false);
        self.out.onnx(graph, &y)
    }
}
