//! Activations without parameters.

use candle_core::{Result, Tensor};

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
    ///
    /// # Errors
    ///
    /// Not f32, or not on the CPU.
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
}
