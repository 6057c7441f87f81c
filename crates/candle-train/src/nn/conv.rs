//! Convolution layers, channels last.

use candle_core::{Result, Tensor};

use super::{Builder, ForwardContext, Init, Param};
use crate::ops::{self, ConvOptions, Weight, Window};

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
    /// Groups of channels that do not see each other; as many as channels for a depthwise convolution.
    pub groups: usize,
}

impl ConvShape {
    /// Shape of the weight: (out, in / groups, kernel, kernel).
    pub fn weight(&self) -> [usize; 4] {
        [self.outputs, self.group_inputs(), self.kernel, self.kernel]
    }

    /// Shape of the weight of a [`Conv1d`]: (out, in / groups, kernel).
    pub fn weight_1d(&self) -> [usize; 3] {
        [self.outputs, self.group_inputs(), self.kernel]
    }

    fn group_inputs(&self) -> usize {
        self.inputs / self.groups.max(1)
    }
}

/// `torch.nn.Conv2d` over NHWC activations: `weight` (out, in / groups, k, k), and `bias` (out) or none.
pub struct Conv2d {
    weight: Param,
    bias: Option<Param>,
    window: Window,
    groups: usize,
}

impl Conv2d {
    /// Registers `weight` and `bias`, both with PyTorch's default initialisation.
    ///
    /// # Errors
    ///
    /// A name is taken, or the device is out of memory.
    pub fn new(builder: &Builder, shape: ConvShape) -> Result<Self> {
        let init = Init::torch_default(shape.weight()[1..].iter().product());
        Self::with_init(builder, shape, init)
    }

    /// Registers `weight` with these initial values, and `bias` with PyTorch's.
    ///
    /// # Errors
    ///
    /// As [`Conv2d::new`].
    pub fn with_init(builder: &Builder, shape: ConvShape, init: Init) -> Result<Self> {
        let default = Init::torch_default(shape.weight()[1..].iter().product());
        Self::with_inits(builder, shape, init, default)
    }

    /// Registers `weight` and `bias` with these initial values.
    ///
    /// # Errors
    ///
    /// As [`Conv2d::new`].
    pub fn with_inits(
        builder: &Builder,
        shape: ConvShape,
        weight: Init,
        bias: Init,
    ) -> Result<Self> {
        let layer = Self::without_bias(builder, shape, weight)?;
        let bias = builder.param("bias", &[shape.outputs], bias)?;
        Ok(Self { bias: Some(bias), ..layer })
    }

    /// Registers `weight` only.
    ///
    /// # Errors
    ///
    /// As [`Conv2d::new`].
    pub fn without_bias(builder: &Builder, shape: ConvShape, init: Init) -> Result<Self> {
        let weight = builder.param("weight", &shape.weight(), init)?;
        Ok(Self { weight, bias: None, window: shape.window, groups: shape.groups })
    }

    /// x (n, h, w, in) -> (n, oh, ow, out).
    ///
    /// # Errors
    ///
    /// A shape that does not fit.
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::weight).transpose()?;
        let options = options(self.window, self.groups, pass);
        ops::conv2d(x, &self.weight.weight()?, bias.as_ref(), options)
    }
}

/// `torch.nn.Conv1d` over NLC activations: `weight` (out, in / groups, k), and `bias` (out) or none.
pub struct Conv1d {
    weight: Param,
    bias: Option<Param>,
    window: Window,
    groups: usize,
}

impl Conv1d {
    /// Registers `weight` and `bias`, both with PyTorch's default initialisation.
    ///
    /// # Errors
    ///
    /// As [`Conv2d::new`].
    pub fn new(builder: &Builder, shape: ConvShape) -> Result<Self> {
        let layer = Self::without_bias(builder, shape)?;
        let bias = builder.param("bias", &[shape.outputs], Self::init(shape))?;
        Ok(Self { bias: Some(bias), ..layer })
    }

    /// Registers `weight` only.
    ///
    /// # Errors
    ///
    /// As [`Conv2d::new`].
    pub fn without_bias(builder: &Builder, shape: ConvShape) -> Result<Self> {
        let weight = builder.param("weight", &shape.weight_1d(), Self::init(shape))?;
        Ok(Self { weight, bias: None, window: shape.window, groups: shape.groups })
    }

    fn init(shape: ConvShape) -> Init {
        Init::torch_default(shape.weight_1d()[1..].iter().product())
    }

    /// x (n, l, in) -> (n, ol, out).
    ///
    /// # Errors
    ///
    /// A shape that does not fit.
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let bias = self.bias.as_ref().map(Param::weight).transpose()?;
        let options = options(self.window, self.groups, pass);
        ops::conv1d(x, &self.weight.weight()?, bias.as_ref(), options)
    }
}

impl Conv2d {
    /// The weight and the options, if there is no bias: for operations that a convolution is part of.
    pub(super) fn parts(&self, pass: &ForwardContext) -> Result<Option<(Weight, ConvOptions)>> {
        match self.bias {
            Some(_) => Ok(None),
            None => Ok(Some((self.weight.weight()?, options(self.window, self.groups, pass)))),
        }
    }
}

/// `torch.nn.ConvTranspose1d` over NLC activations, without groups: `weight` (in, out, k), `bias` (out).
pub struct ConvTranspose1d {
    weight: Param,
    bias: Param,
    window: Window,
}

impl ConvTranspose1d {
    /// Registers `weight` and `bias`, both with PyTorch's default initialisation.
    ///
    /// # Errors
    ///
    /// As [`Conv2d::new`].
    pub fn new(builder: &Builder, shape: ConvShape) -> Result<Self> {
        let ConvShape { inputs, outputs, kernel, window, .. } = shape;
        // PyTorch counts the inputs of the convolution that this is the transpose of.
        let init = Init::torch_default(outputs * kernel);
        Ok(Self {
            weight: builder.param("weight", &[inputs, outputs, kernel], init)?,
            bias: builder.param("bias", &[outputs], init)?,
            window,
        })
    }

    /// x (n, l, in) -> (n, (l - 1) stride - 2 padding + k, out).
    ///
    /// # Errors
    ///
    /// A shape that does not fit.
    pub fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let options = options(self.window, 1, pass);
        ops::conv_transpose1d(x, &self.weight.weight()?, &self.bias.weight()?, options)
    }
}

fn options(window: Window, groups: usize, pass: &ForwardContext) -> ConvOptions {
    let ForwardContext { precision, convolutions, .. } = *pass;
    ConvOptions { window, groups, precision, convolutions }
}
