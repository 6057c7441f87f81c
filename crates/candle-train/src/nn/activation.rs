//! Activations without parameters.

use candle_core::{Result, Tensor};

use crate::onnx::{Attribute, Graph, Value};
use crate::ops;

/// PyTorch's activations, by their names there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nonlinearity {
    /// `ReLU`.
    Relu,
    /// `ReLU6`.
    Relu6,
    /// `Hardswish`.
    Hardswish,
    /// `Hardsigmoid`.
    Hardsigmoid,
    /// `GELU()`.
    Gelu,
    /// `GELU(approximate="tanh")`.
    GeluTanh,
    /// `SiLU`, also called Swish.
    Silu,
    /// `Mish`.
    Mish,
    /// `Sigmoid`.
    Sigmoid,
    /// `Tanh`.
    Tanh,
}

impl Nonlinearity {
    /// Element by element; any shape.
    pub fn forward(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Relu => ops::relu(x),
            Self::Relu6 => ops::relu6(x),
            Self::Hardswish => ops::hardswish(x),
            Self::Hardsigmoid => ops::hardsigmoid(x),
            Self::Gelu => ops::gelu(x),
            Self::GeluTanh => ops::gelu_tanh(x),
            Self::Silu => ops::silu(x),
            Self::Mish => ops::mish(x),
            Self::Sigmoid => ops::sigmoid(x),
            Self::Tanh => ops::tanh(x),
        }
    }

    /// Adds [`Nonlinearity::forward`] to a graph of ONNX.
    pub fn onnx(self, graph: &mut Graph, x: &Value) -> Value {
        match self {
            Self::Relu => graph.unary("Relu", x, &[]),
            Self::Relu6 => {
                let [least, most] = [0.0, 6.0].map(|end| graph.scalar(end));
                let x = graph.binary("Max", x, &least);
                graph.binary("Min", &x, &most)
            }
            Self::Hardswish => graph.unary("HardSwish", x, &[]),
            Self::Hardsigmoid => {
                graph.unary("HardSigmoid", x, &[Attribute::Float("alpha", 1.0 / 6.0)])
            }
            Self::Gelu => graph.unary("Gelu", x, &[]),
            Self::GeluTanh => graph.unary("Gelu", x, &[Attribute::Text("approximate", "tanh")]),
            Self::Silu => {
                let gate = graph.unary("Sigmoid", x, &[]);
                graph.mul(x, &gate)
            }
            Self::Mish => graph.unary("Mish", x, &[]),
            Self::Sigmoid => graph.unary("Sigmoid", x, &[]),
            Self::Tanh => graph.unary("Tanh", x, &[]),
        }
    }
}
