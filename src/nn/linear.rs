//! Fully connected layer.

use candle_core::{Result, Tensor};

use super::{Builder, Init, Param, Pass};
use crate::ops;

/// `torch.nn.Linear`: `weight` (out, in), `bias` (out), both U(+-1/sqrt(in)).
pub struct Linear {
    weight: Param,
    bias: Option<Param>,
}

impl Linear {
    /// Registers `weight` and `bias`.
    ///
    /// # Errors
    ///
    /// A name is taken, or the device is out of memory.
    pub fn new(builder: &Builder, inputs: usize, outputs: usize) -> Result<Self> {
        let layer = Self::without_bias(builder, inputs, outputs)?;
        let bias = builder.param("bias", &[outputs], Init::torch_default(inputs))?;
        Ok(Self { bias: Some(bias), ..layer })
    }

    /// Registers `weight` only.
    ///
    /// # Errors
    ///
    /// As [`Linear::new`].
    pub fn without_bias(builder: &Builder, inputs: usize, outputs: usize) -> Result<Self> {
        let weight = builder.param("weight", &[outputs, inputs], Init::torch_default(inputs))?;
        Ok(Self { weight, bias: None })
    }

    /// x (n, in) -> (n, out).
    ///
    /// # Errors
    ///
    /// A shape that does not fit.
    pub fn forward(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::tensor).transpose()?;
        ops::linear(x, &self.weight.tensor()?, bias.as_ref(), pass.precision)
    }
}
