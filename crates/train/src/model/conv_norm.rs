//! A convolution with its batch norm and activation, and squeeze and excitation: the parts that
//! torchvision's convolutional networks share.

use candle_core::{Result, Tensor};

use crate::nn::{BatchNorm2d, Builder, Conv2d, ConvShape, ForwardContext, Init, Nonlinearity};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Activation, Window};

/// Options of all norms of a network.
#[derive(Clone, Copy)]
pub(super) struct Norms {
    pub(super) eps: f64,
    pub(super) momentum: f64,
}

/// PyTorch's defaults.
pub(super) const DEFAULT_NORMS: Norms = Norms { eps: 1e-5, momentum: 0.1 };

/// Sizes of a [`ConvNorm`].
#[derive(Clone, Copy)]
pub(super) struct ConvSizes {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) groups: usize,
}

impl ConvSizes {
    /// A 1x1 convolution.
    pub(super) fn pointwise(inputs: usize, outputs: usize) -> Self {
        Self { inputs, outputs, kernel: 1, stride: 1, groups: 1 }
    }
}

/// A convolution without bias that keeps the size but for its stride, a norm, and an activation.
pub(super) struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm2d,
    activation: Option<Nonlinearity>,
}

impl ConvNorm {
    /// Registers `0`, the convolution, and `1`, its norm. Sets `size` to that of the output.
    pub(super) fn new(
        builder: &Builder,
        sizes: ConvSizes,
        size: &mut [usize; 2],
        norms: Norms,
        activation: Option<Nonlinearity>,
    ) -> Result<Self> {
        Self::named([&builder.pp(0), &builder.pp(1)], sizes, size, norms, activation)
    }

    /// [`ConvNorm::new`] with builders of the convolution and of its norm.
    pub(super) fn named(
        [conv, norm]: [&Builder; 2],
        sizes: ConvSizes,
        size: &mut [usize; 2],
        norms: Norms,
        activation: Option<Nonlinearity>,
    ) -> Result<Self> {
        let ConvSizes { inputs, outputs, kernel, stride, groups } = sizes;
        *size = size.map(|length| length.div_ceil(stride));
        let window = Window { stride, padding: kernel / 2 };
        let shape = ConvShape { inputs, outputs, kernel, window, groups };
        let conv = Conv2d::without_bias(conv, shape, Init::he_fan_out(&shape.weight()))?;
        let norm = BatchNorm2d::new(norm, outputs, size.iter().product(), 1.0)?;
        Ok(Self { conv, norm: norm.with_options(norms.eps, norms.momentum), activation })
    }

    pub(super) fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        match self.activation {
            Some(Nonlinearity::Relu) => {
                self.norm.after(&self.conv, x, None, Activation::Relu, pass)
            }
            None => self.norm.after(&self.conv, x, None, Activation::Identity, pass),
            Some(activation) => {
                let y = self.norm.after(&self.conv, x, None, Activation::Identity, pass)?;
                activation.forward(&y)
            }
        }
    }

    /// relu(norm(conv(x)) + residual)
    pub(super) fn forward_residual(
        &self,
        x: &Tensor,
        residual: &Tensor,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        self.norm.after(&self.conv, x, Some(residual), Activation::Relu, pass)
    }

    /// [`ConvNorm::forward`] in a graph of ONNX.
    pub(super) fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let y = self.conv.onnx(graph, x, [0; 2])?;
        let y = self.norm.onnx(graph, &y, Activation::Identity)?;
        Ok(self.activation.map_or(y.clone(), |activation| activation.onnx(graph, &y)))
    }
}

/// Options of a [`SqueezeExcitation`].
#[derive(Clone, Copy)]
pub(super) struct Squeeze {
    /// Channels between its two layers.
    pub(super) channels: usize,
    pub(super) activation: Nonlinearity,
    pub(super) gate: Nonlinearity,
    /// True if biases begin at zero, and not as PyTorch's.
    pub(super) zero_bias: bool,
}

/// Each channel times a gate that follows from the means of all channels (Hu et al., 2018).
pub(super) struct SqueezeExcitation {
    fc1: Conv2d,
    fc2: Conv2d,
    options: Squeeze,
}

impl SqueezeExcitation {
    /// Registers `fc1` and `fc2`.
    pub(super) fn new(builder: &Builder, channels: usize, options: Squeeze) -> Result<Self> {
        let conv = |name: &str, inputs, outputs| {
            let window = Window { stride: 1, padding: 0 };
            let shape = ConvShape { inputs, outputs, kernel: 1, window, groups: 1 };
            let weight = Init::he_fan_out(&shape.weight());
            let bias =
                if options.zero_bias { Init::Constant(0.0) } else { Init::torch_default(inputs) };
            Conv2d::with_inits(&builder.pp(name), shape, weight, bias)
        };
        let fc1 = conv("fc1", channels, options.channels)?;
        Ok(Self { fc1, fc2: conv("fc2", options.channels, channels)?, options })
    }

    pub(super) fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let means = self.fc1.forward(&ops::mean_pixel(x)?, pass)?;
        let gate = self.fc2.forward(&self.options.activation.forward(&means)?, pass)?;
        ops::gated(x, &self.options.gate.forward(&gate)?)
    }

    /// [`SqueezeExcitation::forward`] in a graph of ONNX.
    pub(super) fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let means = graph.mean_pixel(x);
        let means = self.fc1.onnx(graph, &means, [0; 2])?;
        let means = self.options.activation.onnx(graph, &means);
        let gate = self.fc2.onnx(graph, &means, [0; 2])?;
        let gate = self.options.gate.onnx(graph, &gate);
        Ok(graph.gated(x, &gate))
    }
}

/// A multiple of 8 near n, at least 8 and not more than a tenth below n.
pub(super) fn divisible(n: f64) -> usize {
    let near = (((n + 4.0) / 8.0) as usize * 8).max(8);
    if (near as f64) < 0.9 * n { near + 8 } else { near }
}
