//! Low-rank adaptation (Hu et al., 2021, <https://arxiv.org/abs/2106.09685>), with the names of
//! PEFT.

use candle_core::{Result, Tensor};

use super::{Builder, Dropout, ForwardContext, Init, Linear};
use crate::onnx::{Graph, Value};
use crate::ops;

/// The layers that have an adapter, and its settings: PEFT's `LoraConfig`.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// Rank of the matrix that is added to a weight.
    pub r: usize,
    /// The matrix that is added is multiplied by alpha / r.
    pub alpha: f64,
    /// Dropout before the adapter.
    pub dropout: f64,
    /// Last parts of the names of the layers that have one.
    pub targets: Vec<String>,
}

/// A linear layer that may have an adapter: y = W x + (alpha / r) B (A dropout(x)).
pub struct Adapted {
    base: Linear,
    adapter: Option<Adapter>,
}

/// `lora_A.weight` (r, in), U(+-1/sqrt(in)), and `lora_B.weight` (out, r), zeros: at first nothing
/// is added.
struct Adapter {
    a: Linear,
    b: Linear,
    dropout: Dropout,
    scale: f64,
}

impl Adapted {
    /// Registers `weight`, without a bias, and the adapter if `lora` names this layer as one of its
    /// targets. The adapter is trainable even where the builder is frozen.
    pub fn new(
        builder: &Builder,
        sizes: [usize; 2],
        init: Init,
        lora: Option<&LoraConfig>,
    ) -> Result<Self> {
        Self::with_bias(builder, sizes, init, None, lora)
    }

    /// [`Adapted::new`] with a `bias`, if it has initial values.
    pub fn with_bias(
        builder: &Builder,
        [inputs, outputs]: [usize; 2],
        init: Init,
        bias: Option<Init>,
        lora: Option<&LoraConfig>,
    ) -> Result<Self> {
        let base = Linear::with_init(builder, inputs, outputs, init, bias)?;
        let name = builder.path().rsplit('.').next().unwrap_or_default();
        let lora = lora.filter(|lora| lora.targets.iter().any(|target| target == name));
        let adapter = |lora: &LoraConfig| -> Result<Adapter> {
            let builder = builder.trainable();
            let down = Init::torch_default(inputs);
            let zeros = Init::Constant(0.0);
            Ok(Adapter {
                a: Linear::with_init(&builder.pp("lora_A"), inputs, lora.r, down, None)?,
                b: Linear::with_init(&builder.pp("lora_B"), lora.r, outputs, zeros, None)?,
                dropout: Dropout::new(&builder.pp("lora_dropout"), lora.dropout),
                scale: lora.alpha / lora.r as f64,
            })
        };
        Ok(Self { base, adapter: lora.map(adapter).transpose()? })
    }

    /// x (..., in) -> (..., out).
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let y = self.base.forward(x, pass)?;
        let Some(Adapter { a, b, dropout, scale }) = &self.adapter else { return Ok(y) };
        let added = b.forward(&a.forward(&dropout.forward(x, pass)?, pass)?, pass)?;
        ops::add(&y, &ops::scale(&added, *scale)?)
    }

    /// Adds [`Adapted::forward`] to a graph of ONNX, by one weight, W + (alpha / r) B A.
    pub fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let Some(Adapter { a, b, scale, .. }) = &self.adapter else {
            return self.base.onnx(graph, x);
        };
        let [base, a, b] = [&self.base, a, b].map(Linear::weight);
        let added = b.var()?.as_detached_tensor().matmul(&a.var()?.as_detached_tensor())?;
        let merged = (base.var()?.as_detached_tensor() + (added * *scale)?)?;
        let weight = graph.initializer(base.name(), &merged)?;
        let bias = self.base.bias().map(|bias| bias.onnx(graph)).transpose()?;
        Ok(graph.linear(x, &weight, bias.as_ref()))
    }
}
