//! The post-norm encoder layer of the Informer family, as `iTransformer` and `PatchTST` use it:
//! attention, then two convolutions of width 1, each with dropout, a residual and a layer norm.
//!
//! Keys of layer i: `attn_layers.{i}.attention.{query,key,value,out}_projection`, `.conv1`,
//! `.conv2`, `.norm1`, `.norm2`.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::attention::MultiHead;
use crate::nn::{
    self, Builder, Conv1d, ConvShape, Dropout, ForwardContext, LayerNorm, Nonlinearity,
};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Window};

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

/// The layers of an encoder.
pub(super) struct Encoder(Vec<Arc<Layer>>);

impl Encoder {
    /// Its layers, below `builder`.
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
}

impl Encoder {
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
}

impl Layer {
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
