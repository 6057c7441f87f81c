//! Residual networks (He et al., 2016), with torchvision's keys, initialisation and "v1.5" strides.
//!
//! - `resnet18`, `resnet34`, `resnet50`: torchvision's; `stem = "cifar"` begins with a 3x3 convolution
//!   of stride 1 and no pooling.
//! - `resnet8`, `resnet20`: He et al. section 4.2, three stages of 16, 32 and 64 channels for 32x32
//!   images, with projection shortcuts (option B). Always the 3x3 stem.
//! - With `head = "hidden"` their `fc` is dropout, linear to 512, rectifier, dropout, linear. `resnet18_animals90` is
//!   a `resnet18` with that head under the prefix `resnet18.`.
//!
//! With `freeze_backbone` only `fc` learns; as in PyTorch with `requires_grad = False`, norms still use and
//! track batch statistics while training, unless `backbone_mode = "eval"`.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Architecture, Head as Outputs, Model, Models};
use crate::config::kind::{Kind, Wrong};
use crate::nn::{
    self, BatchNorm2d, Builder, Conv2d, ConvShape, Dropout, ForwardContext, Init, Linear,
};
use crate::ops::{self, Activation, Window};
use crate::plan::{Modality, ModelPlan};

/// After the stem of large images.
const POOLING: Window = Window { stride: 2, padding: 1 };

/// torchvision's residual network of 18 layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResNetConfig {
    /// "imagenet" (7x7 convolution with stride 2, then pooling) or "cifar" (3x3, stride 1, for small images; always
    /// that of resnet8 and resnet20).
    pub stem: Stem,
    /// start the last norm of each residual block at zero (Goyal et al. 2017).
    pub zero_init_residual: bool,
    /// train the head only.
    pub freeze_backbone: bool,
    /// how a frozen backbone runs while the head trains. "train": `BatchNorm` uses the statistics of the batch, and its
    /// running statistics go on moving, as in PyTorch where only `requires_grad` is False. "eval": as after
    /// `backbone.eval()`, with the running statistics that it came with, which stay as they are, and without dropout.
    /// Default: "train".
    #[schemars(with = "BackboneMode", example = BackboneMode::Eval)]
    pub backbone_mode: Option<BackboneMode>,
    /// "linear", or "hidden": dropout, a linear layer to 512 features, a rectifier, dropout, and a linear layer.
    pub head: HeadKind,
    /// probabilities of the two dropouts of the "hidden" head. Default: `[0.5, 0.3]`.
    #[schemars(with = "[f64; 2]", inner(range(min = 0.0, max = 1.0)), example = [0.5, 0.3])]
    pub head_dropout: Option<[f64; 2]>,
    /// What its name says: how deep it is.
    #[serde(skip)]
    pub variant: Variant,
}

/// First layers of a `ResNet`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stem {
    /// 7x7 convolution with stride 2, then 3x3 max pooling with stride 2.
    #[default]
    Imagenet,
    /// 3x3 convolution with stride 1, no pooling: for 32x32 images.
    Cifar,
}

/// In which mode a frozen backbone runs while the head trains, as after `backbone.train()` or `backbone.eval()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BackboneMode {
    /// Norms use and track the statistics of the batch; dropout drops.
    #[default]
    Train,
    /// Norms use their running statistics and leave them as they are; nothing is dropped.
    Eval,
}

/// Last layers of a `ResNet`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HeadKind {
    /// One linear layer.
    #[default]
    Linear,
    /// Two, with dropout before each.
    Hidden,
}

/// What the name says of a residual network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Blocks of each stage.
    pub blocks: &'static [usize],
    /// What a block holds.
    pub block: Block,
    /// Three stages from 16 channels, or four from 64.
    pub is_small: bool,
    /// What its parameters are called by; empty = nothing.
    pub prefix: &'static str,
}

impl Default for Variant {
    /// resnet18
    fn default() -> Self {
        Self { blocks: &[2, 2, 2, 2], block: Block::Basic, is_small: false, prefix: "" }
    }
}

impl Default for ResNetConfig {
    fn default() -> Self {
        Self {
            stem: Stem::Imagenet,
            zero_init_residual: false,
            freeze_backbone: false,
            backbone_mode: None,
            head: HeadKind::Linear,
            head_dropout: None,
            variant: Variant::default(),
        }
    }
}

impl Kind for ResNetConfig {
    const NAME: &'static str = "resnet18";

    fn check(&self) -> Vec<Wrong> {
        frozen_mode(self.freeze_backbone, self.backbone_mode)
    }
}

/// A backbone that learns is in training: what is wrong with a mode that is given for it.
pub(super) fn frozen_mode(is_frozen: bool, mode: Option<BackboneMode>) -> Vec<Wrong> {
    let wrong = || Wrong {
        key: "backbone_mode",
        with: &["freeze_backbone"],
        what: "is for a frozen backbone, but this one learns".to_owned(),
    };
    mode.filter(|_| !is_frozen).map(|_| wrong()).into_iter().collect()
}

/// Adds all residual networks.
pub(super) fn register(models: &mut Models) {
    type Net = ResNetConfig;
    let small = |blocks| Variant { blocks, is_small: true, ..Variant::default() };
    let large = |blocks, block| Variant { blocks, block, ..Variant::default() };
    let about = "He et al.'s residual network of 8 layers for images of 32x32, about 0.08 million parameters.";
    models.add_variant("resnet8", about, move |net: &mut Net| net.variant = small(&[1, 1, 1]));
    let about = "The same of 20 layers, 0.27 million.";
    models.add_variant("resnet20", about, move |net: &mut Net| net.variant = small(&[3, 3, 3]));
    models.add::<Net>();
    let about = "torchvision's residual network of 34 layers.";
    let basic = large(&[3, 4, 6, 3], Block::Basic);
    models.add_variant("resnet34", about, move |net: &mut Net| net.variant = basic);
    let about = "torchvision's residual network of 50 layers, in bottlenecks.";
    let bottleneck = large(&[3, 4, 6, 3], Block::Bottleneck);
    models.add_variant("resnet50", about, move |net: &mut Net| net.variant = bottleneck);
    let about = "A resnet18 with `head = \"hidden\"` and keys under `resnet18.`, as published for 90 animals.";
    models.add_variant("resnet18_animals90", about, |net: &mut Net| {
        net.head = HeadKind::Hidden;
        net.variant.prefix = "resnet18";
    });
}

impl ResNetConfig {
    fn shape(&self) -> Shape {
        let Variant { blocks, block, is_small, .. } = self.variant;
        let (stem, width) = if is_small { (Stem::Cifar, 16) } else { (self.stem, 64) };
        Shape { stem, block, width, blocks: blocks.to_vec() }
    }

    /// Whether the backbone keeps its running statistics while the head trains, and drops nothing.
    fn backbone_in_eval(&self) -> bool {
        self.freeze_backbone && self.backbone_mode == Some(BackboneMode::Eval)
    }
}

impl Architecture for ResNetConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let builder = match self.variant.prefix {
            "" => builder.clone(),
            prefix => builder.pp(prefix),
        };
        let (trunk, features) = Trunk::new(self, plan, &builder)?;
        let fc = builder.pp("fc");
        let head = match self.head {
            HeadKind::Linear => Head::Linear(Linear::new(&fc, features, plan.outputs)?),
            HeadKind::Hidden => {
                let dropout = self.head_dropout.unwrap_or([0.5, 0.3]);
                Head::Hidden {
                    dropouts: [0, 1].map(|i| Dropout::new(&fc.pp(i * 3), dropout[i])),
                    hidden: Linear::new(&fc.pp(1), features, 512)?,
                    last: Linear::new(&fc.pp(4), 512, plan.outputs)?,
                }
            }
        };
        Ok(Box::new(ResNet { trunk, head }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Outputs {
        if self.variant.prefix.is_empty() {
            Outputs::Keys(&["fc."])
        } else {
            Outputs::Keys(&["resnet18.fc."])
        }
    }

    fn keeps_statistics(&self) -> bool {
        self.backbone_in_eval()
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

/// Convolutions of a residual block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
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
    fn new(config: &ResNetConfig, plan: &ModelPlan, builder: &Builder) -> Result<(Self, usize)> {
        let shape = config.shape();
        let [channels, height, width] = plan.input[..] else {
            bail!("samples are (channels, height, width), not {:?}", plan.input)
        };
        let builder = if config.freeze_backbone { builder.frozen() } else { builder.clone() };
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
        let last_gamma = if config.zero_init_residual { 0.0 } else { 1.0 };
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
        let in_eval = config.backbone_in_eval();
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
