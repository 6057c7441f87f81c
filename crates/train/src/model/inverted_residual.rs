//! Inverted residual blocks as torchvision writes them for `MobileNetV3` and `EfficientNet`: 1x1 to
//! more channels, depthwise, squeeze and excitation, 1x1 to few channels.
//!
//! Keys: `block.{i}.{0,1}` of convolutions and their norms, `block.{i}.{fc1,fc2}` of squeeze and
//! excitation. timm's names load as well.

use candle_core::{Result, Tensor};

use super::names::Library;
use crate::nn::{
    self, BatchNorm2d, Builder, Conv2d, ConvShape, DropPath, ForwardContext, Init, Nonlinearity,
};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Activation, Window};

const TIMM: &str = Library::Timm.words();

/// Options of all norms of a network.
#[derive(Clone, Copy)]
pub(super) struct Norms {
    pub(super) eps: f64,
    pub(super) momentum: f64,
}

/// A convolution that keeps the size but for its stride, a norm, and an activation.
pub(super) struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm2d,
    activation: Option<Nonlinearity>,
}

impl ConvNorm {
    /// [`ConvNorm::forward`] in a graph of ONNX.
    pub(super) fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let y = self.conv.onnx(graph, x, [0; 2])?;
        let y = self.norm.onnx(graph, &y, Activation::Identity)?;
        Ok(self.activation.map_or(y.clone(), |activation| activation.onnx(graph, &y)))
    }
}

/// Sizes of a [`ConvNorm`].
#[derive(Clone, Copy)]
pub(super) struct ConvSizes {
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) groups: usize,
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
        let ConvSizes { inputs, outputs, kernel, stride, groups } = sizes;
        *size = size.map(|length| length.div_ceil(stride));
        let window = Window { stride, padding: kernel / 2 };
        let shape = ConvShape { inputs, outputs, kernel, window, groups };
        let init = Init::he_fan_out(&shape.weight());
        let conv = Conv2d::without_bias(&builder.pp(0), shape, init)?;
        let norm = BatchNorm2d::new(&builder.pp(1), outputs, size.iter().product(), 1.0)?;
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
}

/// Sizes and functions of a block.
#[derive(Clone, Copy)]
pub(super) struct BlockOptions {
    pub(super) inputs: usize,
    /// Channels of the depthwise convolution.
    pub(super) expanded: usize,
    pub(super) outputs: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) activation: Nonlinearity,
    pub(super) squeeze: Option<Squeeze>,
    /// Probability that a sample skips the block.
    pub(super) skipped: f64,
}

/// Squeeze and excitation (Hu et al., 2018).
#[derive(Clone, Copy)]
pub(super) struct Squeeze {
    pub(super) channels: usize,
    pub(super) activation: Nonlinearity,
    pub(super) gate: Nonlinearity,
}

/// x + project(gate(depthwise(expand(x)))); x is not added where the shape changes.
pub(super) struct InvertedResidual {
    expand: Option<ConvNorm>,
    depthwise: ConvNorm,
    squeeze: Option<SqueezeExcitation>,
    project: ConvNorm,
    /// `None` = x is not added.
    drop_path: Option<DropPath>,
}

impl BlockOptions {
    /// Registers timm's names for the parts of the block at `builder`, which timm calls `other`.
    pub(super) fn register_timm_names(&self, builder: &Builder, other: &str) {
        let convs: &[[&str; 2]] = if self.expanded == self.inputs {
            &[["conv_dw", "bn1"], ["conv_pw", "bn2"]]
        } else {
            &[["conv_pw", "bn1"], ["conv_dw", "bn2"], ["conv_pwl", "bn3"]]
        };
        let block = builder.pp("block");
        let last = convs.len() - 1;
        let squeeze = usize::from(self.squeeze.is_some());
        for (i, names) in convs.iter().enumerate() {
            let index = if i == last { i + squeeze } else { i };
            for (part, name) in names.iter().enumerate() {
                block.pp(index).also_called(TIMM, &part.to_string(), format!("{other}.{name}"));
            }
        }
        if self.squeeze.is_some() {
            for (own, name) in [("fc1", "conv_reduce"), ("fc2", "conv_expand")] {
                block.pp(last).also_called(TIMM, own, format!("{other}.se.{name}"));
            }
        }
    }
}

impl InvertedResidual {
    /// Sets `size` to that of the output.
    pub(super) fn new(
        builder: &Builder,
        options: BlockOptions,
        size: &mut [usize; 2],
        norms: Norms,
    ) -> Result<Self> {
        let BlockOptions { inputs, expanded, outputs, kernel, stride, activation, .. } = options;
        let block = builder.pp("block");
        let mut index = 0..;
        let mut next = || block.pp(index.next().unwrap_or_default());
        let pointwise =
            |inputs, outputs| ConvSizes { inputs, outputs, kernel: 1, stride: 1, groups: 1 };
        let widen = pointwise(inputs, expanded);
        let narrow = pointwise(expanded, outputs);
        let depthwise =
            ConvSizes { inputs: expanded, outputs: expanded, kernel, stride, groups: expanded };
        let expand = (expanded != inputs)
            .then(|| ConvNorm::new(&next(), widen, size, norms, Some(activation)))
            .transpose()?;
        let adds = stride == 1 && inputs == outputs;
        Ok(Self {
            expand,
            depthwise: ConvNorm::new(&next(), depthwise, size, norms, Some(activation))?,
            squeeze: options
                .squeeze
                .map(|squeeze| SqueezeExcitation::new(&next(), expanded, squeeze))
                .transpose()?,
            project: ConvNorm::new(&next(), narrow, size, norms, None)?,
            drop_path: adds
                .then(|| DropPath::new(&builder.pp("stochastic_depth"), options.skipped)),
        })
    }

    /// The forward pass in a graph of ONNX.
    pub(super) fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let mut y = x.clone();
        if let Some(expand) = &self.expand {
            y = expand.onnx(graph, &y)?;
        }
        y = self.depthwise.onnx(graph, &y)?;
        if let Some(squeeze) = &self.squeeze {
            y = squeeze.onnx(graph, &y)?;
        }
        let y = self.project.onnx(graph, &y)?;
        Ok(if self.drop_path.is_some() { graph.add(x, &y) } else { y })
    }
}

impl nn::Block for InvertedResidual {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let mut y = x.clone();
        if let Some(expand) = &self.expand {
            y = expand.forward(&y, pass)?;
        }
        y = self.depthwise.forward(&y, pass)?;
        if let Some(squeeze) = &self.squeeze {
            y = squeeze.forward(&y, pass)?;
        }
        let y = self.project.forward(&y, pass)?;
        match &self.drop_path {
            Some(drop_path) => ops::add(x, &drop_path.forward(&y, pass)?),
            None => Ok(y),
        }
    }
}

/// Each channel times a gate that follows from the means of all channels.
struct SqueezeExcitation {
    fc1: Conv2d,
    fc2: Conv2d,
    options: Squeeze,
}

impl SqueezeExcitation {
    fn new(builder: &Builder, channels: usize, options: Squeeze) -> Result<Self> {
        let conv = |name: &str, inputs, outputs| {
            let window = Window { stride: 1, padding: 0 };
            let shape = ConvShape { inputs, outputs, kernel: 1, window, groups: 1 };
            let init = Init::he_fan_out(&shape.weight());
            Conv2d::with_inits(&builder.pp(name), shape, init, Init::Constant(0.0))
        };
        let fc1 = conv("fc1", channels, options.channels)?;
        Ok(Self { fc1, fc2: conv("fc2", options.channels, channels)?, options })
    }

    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let means = self.fc1.forward(&ops::mean_pixel(x)?, pass)?;
        let gate = self.fc2.forward(&self.options.activation.forward(&means)?, pass)?;
        ops::gated(x, &self.options.gate.forward(&gate)?)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let means = graph.mean_pixel(x);
        let means = self.fc1.onnx(graph, &means, [0; 2])?;
        let means = self.options.activation.onnx(graph, &means);
        let gate = self.fc2.onnx(graph, &means, [0; 2])?;
        let gate = self.options.gate.onnx(graph, &gate);
        Ok(graph.gated(x, &gate))
    }
}
