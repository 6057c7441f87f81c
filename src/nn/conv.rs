//! 2-d convolution layer, NHWC.

use candle_core::{Result, Tensor};

use super::{Builder, Init, Param, Pass};
use crate::ops::{self, Window};

/// Sizes of a convolution with a square kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Input channels.
    pub inputs: usize,
    /// Output channels.
    pub outputs: usize,
    /// Rows and columns of the kernel.
    pub kernel: usize,
    /// How it slides.
    pub window: Window,
}

impl ConvShape {
    /// Shape of the weight: (out, in, kernel, kernel).
    pub fn weight(&self) -> [usize; 4] {
        [self.outputs, self.inputs, self.kernel, self.kernel]
    }
}

/// `torch.nn.Conv2d` over NHWC activations: `weight` (out, in, k, k), and `bias` (out) or none.
pub struct Conv2d {
    weight: Param,
    bias: Option<Param>,
    window: Window,
}

impl Conv2d {
    /// Registers `weight` and `bias`, both with PyTorch's default initialisation.
    ///
    /// # Errors
    ///
    /// A name is taken, or the device is out of memory.
    pub fn new(builder: &Builder, shape: ConvShape) -> Result<Self> {
        let init = Init::torch_default(shape.inputs * shape.kernel * shape.kernel);
        let layer = Self::without_bias(builder, shape, init)?;
        let bias = builder.param("bias", &[shape.outputs], init)?;
        Ok(Self { bias: Some(bias), ..layer })
    }

    /// Registers `weight` only.
    ///
    /// # Errors
    ///
    /// As [`Conv2d::new`].
    pub fn without_bias(builder: &Builder, shape: ConvShape, init: Init) -> Result<Self> {
        let weight = builder.param("weight", &shape.weight(), init)?;
        Ok(Self { weight, bias: None, window: shape.window })
    }

    /// x (n, h, w, in) -> (n, oh, ow, out).
    ///
    /// # Errors
    ///
    /// A shape that does not fit.
    pub fn forward(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::tensor).transpose()?;
        ops::conv2d(x, &self.weight.tensor()?, bias.as_ref(), self.window, pass.precision)
    }
}
