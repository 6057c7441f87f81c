//! Multi-head attention with four linear layers around it, under whatever names the original has.

use candle_core::{Result, Tensor, bail};

use crate::nn::{Builder, Dropout, ForwardContext, Linear};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Attention};

/// Queries, keys and values each through a linear layer, attention, and one more linear layer.
pub(super) struct MultiHead {
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    heads: usize,
    dropout: Dropout,
}

impl MultiHead {
    /// Registers the layers of queries, keys, values and output under `names`, in this order;
    /// `dropout` is that of the probabilities.
    pub(super) fn new(
        builder: &Builder,
        names: [&str; 4],
        width: usize,
        heads: usize,
        dropout: f64,
    ) -> Result<Self> {
        if heads == 0 || !width.is_multiple_of(heads) {
            bail!("`d_model` = {width} cannot be divided among `n_heads` = {heads}");
        }
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
