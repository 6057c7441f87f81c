//! Inverted residual blocks as torchvision writes them for `MobileNetV2`, `MobileNetV3` and
//! `EfficientNet` (a convolution to more channels, one within each channel, squeeze and excitation,
//! and one to few channels), and networks of them.
//!
//! Keys: `block.{i}.{0,1}` of convolutions and their norms, `block.{i}.{fc1,fc2}` of squeeze and
//! excitation; in `MobileNetV2` `conv.{i}.{0,1}`, and the last convolution and its norm are
//! `conv.{n}` and `conv.{n+1}`. timm's names load as well.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::Model;
use super::conv_norm::{ConvNorm, ConvSizes, Norms, Squeeze, SqueezeExcitation};
use super::names::Library;
use crate::nn::{self, Builder, DropPath, Dropout, ForwardContext, Linear, Nonlinearity};
use crate::onnx::{Graph, Value};
use crate::ops;

const TIMM: &str = Library::Timm.words();

/// Sizes and functions of a block.
#[derive(Clone, Copy)]
pub(super) struct BlockOptions {
    pub(super) family: Family,
    pub(super) inputs: usize,
    /// Channels between the first and the last convolution.
    pub(super) expanded: usize,
    pub(super) outputs: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) activation: Nonlinearity,
    pub(super) squeeze: Option<Squeeze>,
    /// Probability that a sample skips the block.
    pub(super) skipped: f64,
}

/// Order and names of the convolutions of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// 1x1, depthwise, 1x1 under `conv`, as in `MobileNetV2`.
    Flat,
    /// The same under `block`, with squeeze and excitation before the last.
    Nested,
    /// One convolution to more channels, and 1x1 to few: `FusedMBConv` of `EfficientNetV2`. A block
    /// that does not widen is the first alone.
    Fused,
}

/// x + project(gate(depthwise(expand(x)))); x is not added where the shape changes.
pub(super) struct InvertedResidual {
    layers: Vec<ConvNorm>,
    squeeze: Option<SqueezeExcitation>,
    project: Option<ConvNorm>,
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
        let block = builder.pp(self.family.module());
        let last = convs.len() - 1;
        let squeeze = usize::from(self.squeeze.is_some());
        for (i, names) in convs.iter().enumerate() {
            let index = if i == last { i + squeeze } else { i };
            for (part, name) in names.iter().enumerate() {
                let is_flat = self.family == Family::Flat && i == last;
                let own = if is_flat { format!("{}", i + part) } else { format!("{index}.{part}") };
                block.also_called(TIMM, &own, format!("{other}.{name}"));
            }
        }
        if self.squeeze.is_some() {
            for (own, name) in [("fc1", "conv_reduce"), ("fc2", "conv_expand")] {
                block.pp(last).also_called(TIMM, own, format!("{other}.se.{name}"));
            }
        }
    }
}

impl Family {
    fn module(self) -> &'static str {
        match self {
            Self::Flat => "conv",
            Self::Nested | Self::Fused => "block",
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
        let BlockOptions { family, inputs, expanded, outputs, kernel, stride, .. } = options;
        let block = builder.pp(family.module());
        let activation = Some(options.activation);
        let mut layers = Vec::new();
        let mut index = 0;
        let mut layer = |sizes: ConvSizes, size: &mut [usize; 2]| -> Result<()> {
            layers.push(ConvNorm::new(&block.pp(index), sizes, size, norms, activation)?);
            index += 1;
            Ok(())
        };
        let widens = expanded != inputs;
        if family == Family::Fused {
            let outputs = if widens { expanded } else { outputs };
            layer(ConvSizes { inputs, outputs, kernel, stride, groups: 1 }, size)?;
        } else {
            if widens {
                layer(ConvSizes::pointwise(inputs, expanded), size)?;
            }
            let groups = expanded;
            let sizes = ConvSizes { inputs: expanded, outputs: expanded, kernel, stride, groups };
            layer(sizes, size)?;
        }
        let squeeze = options
            .squeeze
            .map(|squeeze| SqueezeExcitation::new(&block.pp(index), expanded, squeeze))
            .transpose()?;
        index += usize::from(squeeze.is_some());
        let narrow = ConvSizes::pointwise(expanded, outputs);
        let project = match family {
            Family::Fused if !widens => None,
            Family::Flat => {
                let names = [&block.pp(index), &block.pp(index + 1)];
                Some(ConvNorm::named(names, narrow, size, norms, None)?)
            }
            _ => Some(ConvNorm::new(&block.pp(index), narrow, size, norms, None)?),
        };
        let adds = stride == 1 && inputs == outputs;
        let drop_path =
            adds.then(|| DropPath::new(&builder.pp("stochastic_depth"), options.skipped));
        Ok(Self { layers, squeeze, project, drop_path })
    }

    /// The forward pass in a graph of ONNX.
    pub(super) fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let mut y = x.clone();
        for layer in &self.layers {
            y = layer.onnx(graph, &y)?;
        }
        if let Some(squeeze) = &self.squeeze {
            y = squeeze.onnx(graph, &y)?;
        }
        if let Some(project) = &self.project {
            y = project.onnx(graph, &y)?;
        }
        Ok(if self.drop_path.is_some() { graph.add(x, &y) } else { y })
    }
}

impl nn::Block for InvertedResidual {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let mut y = x.clone();
        for layer in &self.layers {
            y = layer.forward(&y, pass)?;
        }
        if let Some(squeeze) = &self.squeeze {
            y = squeeze.forward(&y, pass)?;
        }
        if let Some(project) = &self.project {
            y = project.forward(&y, pass)?;
        }
        match &self.drop_path {
            Some(drop_path) => ops::add(x, &drop_path.forward(&y, pass)?),
            None => Ok(y),
        }
    }
}

/// Images (n, c, h, w) -> a convolution, blocks, a convolution, means, dropout and a linear layer.
pub(super) struct InvertedResidualNet {
    pub(super) first: ConvNorm,
    pub(super) blocks: Vec<Arc<InvertedResidual>>,
    pub(super) last: ConvNorm,
    pub(super) dropout: Dropout,
    pub(super) head: Linear,
}

impl Model for InvertedResidualNet {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        ops::chain(input, |x| {
            let x = self.first.forward(&ops::nchw_to_nhwc(x)?, pass)?;
            let x = self.blocks.iter().try_fold(x, |x, block| nn::run_block(block, &x, pass))?;
            let x = ops::global_average_pool(&self.last.forward(&x, pass)?)?;
            self.head.forward(&self.dropout.forward(&x, pass)?, pass)
        })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = graph.images(input);
        let x = self.first.onnx(graph, &x)?;
        let x = self.blocks.iter().try_fold(x, |x, block| block.onnx(graph, &x))?;
        let x = self.last.onnx(graph, &x)?;
        let x = graph.global_average_pool(&x);
        self.head.onnx(graph, &x)
    }
}
