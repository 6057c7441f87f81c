//! Fully connected layer.

use candle_core::{Result, Tensor, bail};

use super::{Builder, ForwardContext, Init, Nonlinearity, Param};
use crate::onnx::{Graph, Value};
use crate::ops::{self, LinearActivation};

/// `torch.nn.Linear`: `weight` (out, in), `bias` (out), both U(+-1/sqrt(in)).
pub struct Linear {
    weight: Param,
    bias: Option<Param>,
}

impl Linear {
    /// Registers `weight` and `bias`.
    pub fn new(builder: &Builder, inputs: usize, outputs: usize) -> Result<Self> {
        let init = Init::torch_default(inputs);
        Self::with_init(builder, inputs, outputs, init, Some(init))
    }

    /// Registers `weight` only.
    pub fn without_bias(builder: &Builder, inputs: usize, outputs: usize) -> Result<Self> {
        Self::with_init(builder, inputs, outputs, Init::torch_default(inputs), None)
    }

    /// Registers `weight`, and `bias` if it has initial values.
    pub fn with_init(
        builder: &Builder,
        inputs: usize,
        outputs: usize,
        weight: Init,
        bias: Option<Init>,
    ) -> Result<Self> {
        let weight = builder.matrix("weight", [outputs, inputs], weight)?;
        let bias = bias.map(|init| builder.param("bias", &[outputs], init)).transpose()?;
        Ok(Self { weight, bias })
    }

    /// A layer whose `weight` is another name of that of another layer; registers `bias` if it has
    /// initial values.
    pub fn tied(builder: &Builder, weight: &Param, bias: Option<Init>) -> Result<Self> {
        let &[outputs, _] = weight.shape() else {
            bail!("`{}` of shape {:?} is no matrix", weight.name(), weight.shape())
        };
        builder.alias("weight", weight)?;
        let bias = bias.map(|init| builder.param("bias", &[outputs], init)).transpose()?;
        Ok(Self { weight: weight.clone(), bias })
    }

    /// x (..., in) -> (..., out).
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        self.forward_activated(x, LinearActivation::Identity, pass)
    }

    /// [`Linear::forward`] and an activation in one pass: x (..., in) -> (..., out), behind an
    /// activation in half precision on a GPU under one ([`ops::widen`] makes it f32).
    pub fn forward_activated(
        &self,
        x: &Tensor,
        activation: LinearActivation,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::weight).transpose()?;
        let weight = self.weight.weight()?;
        ops::linear_activated(x, &weight, bias.as_ref(), activation, pass.precision)
    }

    /// Adds [`Linear::forward`] to a graph of ONNX.
    pub fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let weight = self.weight.onnx(graph)?;
        let bias = self.bias.as_ref().map(|bias| bias.onnx(graph)).transpose()?;
        Ok(graph.linear(x, &weight, bias.as_ref()))
    }

    /// Adds [`Linear::forward_activated`] to a graph of ONNX.
    pub fn onnx_activated(
        &self,
        graph: &mut Graph,
        x: &Value,
        activation: LinearActivation,
    ) -> Result<Value> {
        let y = self.onnx(graph, x)?;
        Ok(match activation {
            LinearActivation::Identity => y,
            LinearActivation::Relu => Nonlinearity::Relu.onnx(graph, &y),
            LinearActivation::Gelu => Nonlinearity::Gelu.onnx(graph, &y),
            LinearActivation::GeluTanh => Nonlinearity::GeluTanh.onnx(graph, &y),
        })
    }

    /// The weight.
    pub(super) fn weight(&self) -> &Param {
        &self.weight
    }

    /// The bias, if it has one.
    pub(super) fn bias(&self) -> Option<&Param> {
        self.bias.as_ref()
    }
}
