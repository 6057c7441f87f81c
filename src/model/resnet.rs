//! Residual networks (He et al., 2016), with torchvision's keys, initialisation and "v1.5" strides.
//!
//! - `resnet18`, `resnet34`, `resnet50`: torchvision's; `stem = "cifar"` begins with a 3x3 convolution
//!   of stride 1 and no pooling.
//! - `resnet8`, `resnet20`: He et al. section 4.2, three stages of 16, 32 and 64 channels for 32x32
//!   images, with projection shortcuts (option B). Always the 3x3 stem.
//! - `resnet18_animals90`: `resnet18` under the prefix `resnet18.`, whose `fc` is dropout, linear to 512,
//!   rectifier, dropout, linear. `options.head_dropout = [0.5, 0.3]` are its defaults.
//!
//! With `freeze_backbone` only `fc` learns; as in PyTorch with `requires_grad = False`, norms still use and
//! track batch statistics while training, unless `backbone_mode = "eval"`.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};

use super::Model;
use crate::nn::{
    self, BatchNorm2d, Builder, Conv2d, ConvShape, Dropout, ForwardContext, Init, Linear,
};
use crate::ops::{self, Activation, Window};
use crate::plan::{ModelPlan, Stem};

/// After the stem of large images.
const POOLING: Window = Window { stride: 2, padding: 1 };

pub(super) fn build_resnet8(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    build(plan, builder, &small(&[1, 1, 1]))
}

pub(super) fn build_resnet20(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    build(plan, builder, &small(&[3, 3, 3]))
}

pub(super) fn build_resnet18(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    build(plan, builder, &large(plan, Block::Basic, &[2, 2, 2, 2]))
}

pub(super) fn build_resnet34(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    build(plan, builder, &large(plan, Block::Basic, &[3, 4, 6, 3]))
}

pub(super) fn build_resnet50(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    build(plan, builder, &large(plan, Block::Bottleneck, &[3, 4, 6, 3]))
}

pub(super) fn build_animals90(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    let dropout = head_dropout(plan)?;
    let builder = builder.pp("resnet18");
    let (trunk, features) = Trunk::new(plan, &builder, &large(plan, Block::Basic, &[2, 2, 2, 2]))?;
    let fc = builder.pp("fc");
    let head = Head::Hidden {
        dropouts: [0, 1].map(|i| Dropout::new(&fc.pp(i * 3), dropout[i])),
        hidden: Linear::new(&fc.pp(1), features, 512)?,
        last: Linear::new(&fc.pp(4), 512, plan.outputs)?,
    };
    Ok(Box::new(ResNet { trunk, head }))
}

fn build(plan: &ModelPlan, builder: &Builder, shape: &Shape) -> Result<Box<dyn Model>> {
    let (trunk, features) = Trunk::new(plan, builder, shape)?;
    let head = Head::Linear(Linear::new(&builder.pp("fc"), features, plan.outputs)?);
    Ok(Box::new(ResNet { trunk, head }))
}

fn head_dropout(plan: &ModelPlan) -> Result<[f64; 2]> {
    match plan.options.get("head_dropout") {
        None => Ok([0.5, 0.3]),
        Some(value) => serde_json::from_value(value.clone()).map_err(|error| {
            candle_core::Error::Msg(format!("`head_dropout` is two probabilities: {error}"))
        }),
    }
}

/// What tells one residual network from another.
struct Shape {
    stem: Stem,
    block: Block,
    /// Channels of the first stage; each further stage has twice as many.
    width: usize,
    /// Blocks of each stage.
    blocks: Vec<usize>,
}

fn large(plan: &ModelPlan, block: Block, blocks: &[usize]) -> Shape {
    Shape { stem: plan.stem, block, width: 64, blocks: blocks.to_vec() }
}

fn small(blocks: &[usize]) -> Shape {
    Shape { stem: Stem::Cifar, block: Block::Basic, width: 16, blocks: blocks.to_vec() }
}

#[derive(Clone, Copy)]
enum Block {
    /// Two 3x3 convolutions.
    Basic,
    /// 1x1, 3x3, and 1x1 to four times the width.
    Bottleneck,
}

impl Block {
    fn expansion(self) -> usize {
        match self {
            Self::Basic => 1,
            Self::Bottleneck => 4,
        }
    }

    /// Output channels, kernel and stride of each convolution.
    fn convolutions(self, width: usize, stride: usize) -> Vec<(usize, usize, usize)> {
        match self {
            Self::Basic => vec![(width, 3, stride), (width, 3, 1)],
            Self::Bottleneck => vec![(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)],
        }
    }
}

struct ResNet {
    trunk: Trunk,
    head: Head,
}

impl Model for ResNet {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        ops::chain(input, |x| self.head.forward(&self.trunk.forward(x, pass)?, pass))
    }
}

enum Head {
    Linear(Linear),
    Hidden { dropouts: [Dropout; 2], hidden: Linear, last: Linear },
}

impl Head {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        match self {
            Self::Linear(fc) => fc.forward(x, pass),
            Self::Hidden { dropouts: [before, between], hidden, last } => {
                let x = hidden.forward(&before.forward(x, pass)?, pass)?;
                last.forward(&between.forward(&ops::relu(&x)?, pass)?, pass)
            }
        }
    }
}

/// Everything before `fc`: images (n, c, h, w) -> features (n, width).
struct Trunk {
    stem: Stem,
    first: ConvNorm,
    blocks: Vec<Arc<Residual>>,
    /// Whether norms keep to their running statistics while the head trains.
    in_eval: bool,
}

impl Trunk {
    /// Registers the trunk; also returns the number of features.
    fn new(plan: &ModelPlan, builder: &Builder, shape: &Shape) -> Result<(Self, usize)> {
        let [channels, height, width] = plan.input[..] else {
            bail!("samples are (channels, height, width), not {:?}", plan.input)
        };
        let builder = if plan.freeze_backbone { builder.frozen() } else { builder.clone() };
        let (kernel, stride) = match shape.stem {
            Stem::Imagenet => (7, 2),
            Stem::Cifar => (3, 1),
        };
        let stem = conv(channels, shape.width, kernel, stride);
        let mut size = strided([height, width], stride);
        let first = ConvNorm::new(&builder.pp("conv1"), &builder.pp("bn1"), stem, size, 1.0)?;
        if shape.stem == Stem::Imagenet {
            size = strided(size, POOLING.stride);
        }
        let last_gamma = if plan.zero_init_residual { 0.0 } else { 1.0 };
        let (mut blocks, mut inputs) = (Vec::new(), shape.width);
        for (stage, &count) in shape.blocks.iter().enumerate() {
            let builder = builder.pp(format!("layer{}", stage + 1));
            let width = shape.width << stage;
            for i in 0..count {
                let stride = if i == 0 && stage > 0 { 2 } else { 1 };
                let layers = shape.block.convolutions(width, stride);
                let block = Residual::new(&builder.pp(i), inputs, &layers, size, last_gamma)?;
                blocks.push(Arc::new(block));
                size = strided(size, stride);
                inputs = width * shape.block.expansion();
            }
        }
        let in_eval = plan.backbone_in_eval();
        Ok((Self { stem: shape.stem, first, blocks, in_eval }, inputs))
    }

    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let pass = &if self.in_eval { pass.evaluating() } else { *pass };
        let x = ops::nchw_to_nhwc(input)?;
        let mut x = self.first.forward(&x, None, Activation::Relu, pass)?;
        if self.stem == Stem::Imagenet {
            x = ops::max_pool2d(&x, 3, POOLING)?;
        }
        for block in &self.blocks {
            x = nn::run_block(block, &x, pass)?;
        }
        ops::global_average_pool(&x)
    }
}

/// relu(layers(x) + shortcut(x)).
struct Residual {
    layers: Vec<ConvNorm>,
    downsample: Option<ConvNorm>,
}

impl Residual {
    fn new(
        builder: &Builder,
        inputs: usize,
        convolutions: &[(usize, usize, usize)],
        mut size: [usize; 2],
        last_gamma: f64,
    ) -> Result<Self> {
        let (mut layers, mut channels) = (Vec::new(), inputs);
        for (i, &(outputs, kernel, stride)) in convolutions.iter().enumerate() {
            let gamma = if i + 1 == convolutions.len() { last_gamma } else { 1.0 };
            let names = [format!("conv{}", i + 1), format!("bn{}", i + 1)];
            let [conv_builder, norm_builder] = names.map(|name| builder.pp(name));
            let shape = conv(channels, outputs, kernel, stride);
            size = strided(size, stride);
            layers.push(ConvNorm::new(&conv_builder, &norm_builder, shape, size, gamma)?);
            channels = outputs;
        }
        let stride = convolutions.iter().map(|&(_, _, stride)| stride).product();
        let downsample = if stride != 1 || inputs != channels {
            let builder = builder.pp("downsample");
            let shape = conv(inputs, channels, 1, stride);
            Some(ConvNorm::new(&builder.pp(0), &builder.pp(1), shape, size, 1.0)?)
        } else {
            None
        };
        Ok(Self { layers, downsample })
    }
}

impl nn::Block for Residual {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let shortcut = match &self.downsample {
            Some(layer) => layer.forward(x, None, Activation::Identity, pass)?,
            None => x.clone(),
        };
        let mut y = x.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            let residual = (i + 1 == self.layers.len()).then_some(&shortcut);
            y = layer.forward(&y, residual, Activation::Relu, pass)?;
        }
        Ok(y)
    }
}

/// Convolution without bias, then batch norm.
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl ConvNorm {
    /// Height and width of what comes out are `size`.
    fn new(
        conv: &Builder,
        norm: &Builder,
        shape: ConvShape,
        size: [usize; 2],
        gamma: f64,
    ) -> Result<Self> {
        let init = Init::he_fan_out(&shape.weight());
        Ok(Self {
            conv: Conv2d::without_bias(conv, shape, init)?,
            norm: BatchNorm2d::new(norm, shape.outputs, size.iter().product(), gamma)?,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        activation: Activation,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        self.norm.after(&self.conv, x, residual, activation, pass)
    }
}

/// Height and width after a [`conv`] or a pooling.
fn strided(size: [usize; 2], stride: usize) -> [usize; 2] {
    size.map(|length| length.div_ceil(stride))
}

/// A convolution that keeps the size, but for its stride.
fn conv(inputs: usize, outputs: usize, kernel: usize, stride: usize) -> ConvShape {
    let window = Window { stride, padding: kernel / 2 };
    ConvShape { inputs, outputs, kernel, window, groups: 1 }
}
