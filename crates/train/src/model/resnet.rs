//! Residual networks (He et al., 2016), with torchvision's keys, initialisation and "v1.5" strides.
//!
//! - `resnet18` to `resnet152`, `resnext*` and `wide_resnet*`: torchvision's; `stem = "cifar"` begins
//!   with a 3x3 convolution of stride 1 and no pooling.
//! - `resnet8`, `resnet20`, `resnet32`, `resnet44`, `resnet56`: He et al. section 4.2, three stages
//!   of 16, 32 and 64 channels for 32x32 images. Always the 3x3 stem.
//! - Shortcuts that change the shape are convolutions (option B), or with `shortcut = "padding"`
//!   the input itself (option A); then the last layer is called `linear`, as in
//!   <https://github.com/akamaster/pytorch_resnet_cifar10>.
//! - With `head = "hidden"` their `fc` is dropout, linear to 512, ReLU, dropout, linear; `prefix`
//!   begins all names, for weights of a network that another module holds.
//!
//! With `freeze_backbone` only `fc` learns; as in PyTorch with `requires_grad = False`, norms still
//! use and track batch statistics while training, unless `backbone_mode = "eval"`.

mod trunk;

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::{BACKBONE_MODE, BackboneMode, check_backbone_mode};
use super::names::{Library, Naming};
use super::{Architecture, Head as Outputs, Model, Models};
use crate::config::kind::{Kind, OptionConflict};
use crate::nn::{Builder, Dropout, ForwardContext, Linear};
use crate::onnx::{Graph, Value};
use crate::ops::{self, LinearActivation};
use crate::plan::{Modality, ModelPlan};
pub use trunk::Backbone;
use trunk::{Shape, Style, Trunk};

/// torchvision's residual network of 18 layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ResNetConfig {
    /// "imagenet" (7x7 convolution with stride 2, then pooling) or "cifar" (3x3 with stride 1, for
    /// small images; the networks for 32x32 images always have it).
    pub stem: Stem,
    /// shortcut of blocks that change the shape: "projection", a 1x1 convolution (option B), or
    /// "padding", every second row and column of the input with zeros as further channels, without
    /// parameters (option A); the last layer is then called `linear`.
    pub shortcut: Shortcut,
    /// initialise the last norm of each residual block to zero (Goyal et al. 2017).
    pub zero_init_residual: bool,
    /// train only the head.
    pub freeze_backbone: bool,
    /// See [`BackboneMode`]; `None` is "train".
    #[schemars(with = "BackboneMode", description = BACKBONE_MODE, example = BackboneMode::Eval)]
    pub backbone_mode: Option<BackboneMode>,
    /// "linear", or "hidden": dropout, a linear layer to 512 features, ReLU, dropout, and a linear
    /// layer.
    pub head: HeadKind,
    /// probabilities of the two dropouts of the "hidden" head. Default: `[0.5, 0.3]`.
    #[schemars(with = "[f64; 2]", inner(range(min = 0.0, max = 1.0)), example = [0.5, 0.3])]
    pub head_dropout: Option<[f64; 2]>,
    /// first part of all parameter names, such as "resnet18" in `resnet18.conv1.weight`; "" for
    /// none.
    pub prefix: String,
    /// Variant, which follows from the name.
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

/// What goes round a residual block that changes the shape (He et al., section 3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Shortcut {
    /// A 1x1 convolution and its norm (option B).
    #[default]
    Projection,
    /// The input without what the stride skips, and zeros as further channels (option A).
    Padding,
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

/// Size of a residual network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    pub name: &'static str,
    /// Blocks of each stage.
    pub blocks: &'static [usize],
    pub block: Block,
    /// Three stages from 16 channels, or four from 64.
    pub is_small: bool,
    /// Groups of the 3x3 convolution of a bottleneck.
    pub groups: usize,
    /// Channels of such a group where the stage has 64.
    pub width_per_group: usize,
}

impl Default for Variant {
    /// resnet18
    fn default() -> Self {
        Self {
            name: "resnet18",
            blocks: &[2, 2, 2, 2],
            block: Block::Basic,
            is_small: false,
            groups: 1,
            width_per_group: 64,
        }
    }
}

impl Default for ResNetConfig {
    fn default() -> Self {
        Self {
            stem: Stem::Imagenet,
            shortcut: Shortcut::Projection,
            zero_init_residual: false,
            freeze_backbone: false,
            backbone_mode: None,
            head: HeadKind::Linear,
            head_dropout: None,
            prefix: String::new(),
            variant: Variant::default(),
        }
    }
}

impl Kind for ResNetConfig {
    const NAME: &'static str = "resnet18";

    fn name(&self) -> &'static str {
        self.variant.name
    }

    fn check(&self) -> Vec<OptionConflict> {
        let mut wrong = check_backbone_mode(self.freeze_backbone, self.backbone_mode);
        if !self.prefix.is_empty() && self.prefix.split('.').any(str::is_empty) {
            let what = "must be names with a point between them, such as `resnet18`".to_owned();
            wrong.push(OptionConflict { key: "prefix", with: &[], what });
        }
        wrong
    }
}

/// Adds all residual networks.
pub(super) fn register(models: &mut Models) {
    let small = |name, blocks| Variant { name, blocks, is_small: true, ..Variant::default() };
    let deep = |name, blocks, block| Variant { name, blocks, block, ..Variant::default() };
    let about = "He et al.'s residual network of 8 layers for images of 32x32, about 0.08 million \
                 parameters.";
    add(models, about, small("resnet8", &[1, 1, 1]));
    add(models, "The same of 20 layers, 0.27 million.", small("resnet20", &[3, 3, 3]));
    add(models, "The same of 32 layers, 0.46 million.", small("resnet32", &[5, 5, 5]));
    add(models, "The same of 44 layers, 0.66 million.", small("resnet44", &[7, 7, 7]));
    add(models, "The same of 56 layers, 0.85 million.", small("resnet56", &[9, 9, 9]));
    models.add::<ResNetConfig>();
    let about = "torchvision's residual network of 34 layers.";
    add(models, about, deep("resnet34", &[3, 4, 6, 3], Block::Basic));
    let about = "torchvision's residual network of 50 layers, in bottlenecks.";
    let resnet50 = deep("resnet50", &[3, 4, 6, 3], Block::Bottleneck);
    add(models, about, resnet50);
    let about = "torchvision's residual network of 101 layers, in bottlenecks.";
    let resnet101 = deep("resnet101", &[3, 4, 23, 3], Block::Bottleneck);
    add(models, about, resnet101);
    let about = "torchvision's residual network of 152 layers, in bottlenecks.";
    add(models, about, deep("resnet152", &[3, 8, 36, 3], Block::Bottleneck));
    let about =
        "torchvision's ResNeXt of 50 layers, in bottlenecks of 32 groups (Xie et al. 2017).";
    let name = "resnext50_32x4d";
    add(models, about, Variant { name, groups: 32, width_per_group: 4, ..resnet50 });
    let about = "The same of 101 layers, with groups of 8 channels.";
    let name = "resnext101_32x8d";
    add(models, about, Variant { name, groups: 32, width_per_group: 8, ..resnet101 });
    let about = "The same of 101 layers, with 64 groups of 4 channels.";
    let name = "resnext101_64x4d";
    add(models, about, Variant { name, groups: 64, width_per_group: 4, ..resnet101 });
    let about = "torchvision's `resnet50` whose 3x3 convolutions have twice the channels (Zagoruyko \
                 and Komodakis 2016).";
    let name = "wide_resnet50_2";
    add(models, about, Variant { name, width_per_group: 128, ..resnet50 });
    let name = "wide_resnet101_2";
    add(models, "The same of 101 layers.", Variant { name, width_per_group: 128, ..resnet101 });
}

fn add(models: &mut Models, about: &str, variant: Variant) {
    models.add_variant(variant.name, about, move |net: &mut ResNetConfig| net.variant = variant);
}

impl ResNetConfig {
    fn shape(&self) -> Shape {
        let last_gamma = if self.zero_init_residual { 0.0 } else { 1.0 };
        Shape::new(self.variant, self.stem, self.shortcut, Style::Torchvision)
            .with_last_gamma(last_gamma)
    }

    /// True if torchvision and timm have it, under the same names.
    fn is_torchvision(&self) -> bool {
        !self.variant.is_small
            && self.prefix.is_empty()
            && self.stem == Stem::Imagenet
            && self.shortcut == Shortcut::Projection
            && self.head == HeadKind::Linear
    }

    /// Name of the last layer.
    fn last_layer(&self) -> &'static str {
        match self.shortcut {
            Shortcut::Projection => "fc",
            Shortcut::Padding => "linear",
        }
    }

    /// True if the backbone runs in evaluation mode while the head trains.
    fn backbone_in_eval(&self) -> bool {
        self.freeze_backbone && self.backbone_mode == Some(BackboneMode::Eval)
    }
}

impl Architecture for ResNetConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let builder =
            if self.prefix.is_empty() { builder.clone() } else { builder.pp(&self.prefix) };
        let trunk_builder = if self.freeze_backbone { builder.frozen() } else { builder.clone() };
        let (trunk, [_, _, features]) = Trunk::new(self.shape(), &plan.input, &trunk_builder)?;
        let fc = builder.pp(self.last_layer());
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
        Ok(Box::new(ResNet { trunk, head, in_eval: self.backbone_in_eval() }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Outputs {
        let layer = self.last_layer();
        Outputs::Layers(vec![match self.prefix.as_str() {
            "" => layer.to_owned(),
            prefix => format!("{prefix}.{layer}"),
        }])
    }

    fn library(&self) -> Option<Library> {
        self.is_torchvision().then_some(Library::Torchvision)
    }

    fn named_as(&self, _: &ModelPlan, library: Library) -> std::result::Result<Naming, String> {
        match library {
            Library::Timm | Library::Torchvision if self.is_torchvision() => Ok(Naming::default()),
            Library::Timm | Library::Torchvision => {
                Err("has no residual network with such a stem, shortcut, head or depth".to_owned())
            }
            Library::Transformers => Err(Naming::unknown()),
        }
    }

    fn keeps_statistics(&self) -> bool {
        self.backbone_in_eval()
    }
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
}

struct ResNet {
    trunk: Trunk,
    head: Head,
    /// True if the trunk runs in evaluation mode while the head trains.
    in_eval: bool,
}

impl Model for ResNet {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let of_trunk = if self.in_eval { pass.evaluating() } else { pass.clone() };
        ops::chain(input, |x| {
            let maps = self.trunk.forward(x, &of_trunk)?;
            self.head.forward(&ops::global_average_pool(&maps)?, pass)
        })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let maps = self.trunk.onnx(graph, input)?;
        let features = graph.global_average_pool(&maps);
        match &self.head {
            Head::Linear(fc) => fc.onnx(graph, &features),
            Head::Hidden { hidden, last, .. } => {
                let x = hidden.onnx_activated(graph, &features, LinearActivation::Relu)?;
                last.onnx(graph, &x)
            }
        }
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
