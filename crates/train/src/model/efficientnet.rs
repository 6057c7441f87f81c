//! `EfficientNet` (Tan and Le, 2019, <https://arxiv.org/abs/1905.11946>) and `EfficientNetV2` (2021,
//! <https://arxiv.org/abs/2104.00298>), with torchvision's keys and initialisation.
//!
//! Keys: `features.0`, `features.{stage}.{i}` of [inverted residuals](super::inverted_residual),
//! `features.{last}`, `classifier.1`. timm's names of B0 to B4 load as well.

use std::sync::Arc;

use candle_core::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::image_shape;
use super::conv_norm::{ConvNorm, ConvSizes, DEFAULT_NORMS, Norms, Squeeze, divisible};
use super::inverted_residual::{BlockOptions, Family, InvertedResidual, InvertedResidualNet};
use super::names::Library;
use super::{Architecture, Head, Model, Models, TorchvisionModel};
use crate::config::kind::Kind;
use crate::nn::{Builder, Dropout, Init, Linear, Nonlinearity};
use crate::plan::{Modality, ModelPlan};

const TIMM: &str = Library::Timm.words();

/// torchvision's `EfficientNet` B0, 5.3 million parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EfficientNetConfig {
    /// dropout before the last layer. Default: torchvision's, from 0.2 for B0 to 0.5 for B7.
    #[schemars(with = "f64", range(min = 0.0), extend("exclusiveMaximum" = 1.0), example = 0.2)]
    pub dropout: Option<f64>,
    /// stochastic depth: the probability that a sample skips a block grows linearly from 0 in the
    /// first block; a block after the last would have this one. Default: 0.2.
    #[schemars(with = "f64", range(min = 0.0), extend("exclusiveMaximum" = 1.0), example = 0.2)]
    pub stochastic_depth_prob: Option<f64>,
    /// Size, which follows from the name.
    #[serde(skip)]
    pub size: EfficientNetSize,
}

/// Size of an `EfficientNet`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EfficientNetSize {
    pub name: &'static str,
    /// Stages of blocks.
    stages: &'static [Stage],
    /// Multiplies the channels of all stages.
    width: f64,
    /// Multiplies the number of blocks of a stage.
    depth: f64,
    /// torchvision's dropout before the last layer.
    pub dropout: f64,
}

/// A stage: its blocks, how many times more channels there are inside of one, kernel, stride of the
/// first, channels of the output, and their number.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stage(BlockKind, usize, usize, usize, usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockKind {
    /// With a depthwise convolution, and squeeze and excitation.
    Separable,
    /// With one convolution in place of the first two.
    Fused,
}

use BlockKind::{Fused, Separable};

/// B0, of which the others up to B7 are multiples.
const B0: [Stage; 7] = [
    Stage(Separable, 1, 3, 1, 16, 1),
    Stage(Separable, 6, 3, 2, 24, 2),
    Stage(Separable, 6, 5, 2, 40, 2),
    Stage(Separable, 6, 3, 2, 80, 3),
    Stage(Separable, 6, 5, 1, 112, 3),
    Stage(Separable, 6, 5, 2, 192, 4),
    Stage(Separable, 6, 3, 1, 320, 1),
];

const V2_SMALL: [Stage; 6] = [
    Stage(Fused, 1, 3, 1, 24, 2),
    Stage(Fused, 4, 3, 2, 48, 4),
    Stage(Fused, 4, 3, 2, 64, 4),
    Stage(Separable, 4, 3, 2, 128, 6),
    Stage(Separable, 6, 3, 1, 160, 9),
    Stage(Separable, 6, 3, 2, 256, 15),
];

const V2_MEDIUM: [Stage; 7] = [
    Stage(Fused, 1, 3, 1, 24, 3),
    Stage(Fused, 4, 3, 2, 48, 5),
    Stage(Fused, 4, 3, 2, 80, 5),
    Stage(Separable, 4, 3, 2, 160, 7),
    Stage(Separable, 6, 3, 1, 176, 14),
    Stage(Separable, 6, 3, 2, 304, 18),
    Stage(Separable, 6, 3, 1, 512, 5),
];

const V2_LARGE: [Stage; 7] = [
    Stage(Fused, 1, 3, 1, 32, 4),
    Stage(Fused, 4, 3, 2, 64, 7),
    Stage(Fused, 4, 3, 2, 96, 7),
    Stage(Separable, 4, 3, 2, 192, 10),
    Stage(Separable, 6, 3, 1, 224, 19),
    Stage(Separable, 6, 3, 2, 384, 25),
    Stage(Separable, 6, 3, 1, 640, 7),
];

impl Default for EfficientNetSize {
    fn default() -> Self {
        Self { name: "efficientnet_b0", stages: &B0, width: 1.0, depth: 1.0, dropout: 0.2 }
    }
}

impl Kind for EfficientNetConfig {
    const NAME: &'static str = "efficientnet_b0";

    fn name(&self) -> &'static str {
        self.size.name
    }
}

/// Adds all sizes.
pub(super) fn register(models: &mut Models) {
    models.add::<EfficientNetConfig>();
    let mut add = |about: &str, size: EfficientNetSize| {
        let set = move |net: &mut EfficientNetConfig| net.size = size;
        models.add_variant(size.name, about, set);
    };
    let larger = |name, [width, depth, dropout]: [f64; 3]| EfficientNetSize {
        name,
        stages: &B0,
        width,
        depth,
        dropout,
    };
    add("The same, wider and deeper, 7.8 million.", larger("efficientnet_b1", [1.0, 1.1, 0.2]));
    add("The same, 9.1 million.", larger("efficientnet_b2", [1.1, 1.2, 0.3]));
    add("The same, 12 million.", larger("efficientnet_b3", [1.2, 1.4, 0.3]));
    add("The same, 19 million.", larger("efficientnet_b4", [1.4, 1.8, 0.4]));
    add("The same, 30 million.", larger("efficientnet_b5", [1.6, 2.2, 0.4]));
    add("The same, 43 million.", larger("efficientnet_b6", [1.8, 2.6, 0.5]));
    add("The same, 66 million.", larger("efficientnet_b7", [2.0, 3.1, 0.5]));
    let second =
        |name, stages, dropout| EfficientNetSize { name, stages, width: 1.0, depth: 1.0, dropout };
    let about = "torchvision's `EfficientNetV2`, 21 million parameters.";
    add(about, second("efficientnet_v2_s", &V2_SMALL, 0.2));
    add("The same, 54 million.", second("efficientnet_v2_m", &V2_MEDIUM, 0.3));
    add("The same, 118 million.", second("efficientnet_v2_l", &V2_LARGE, 0.4));
}

impl EfficientNetSize {
    fn is_second(&self) -> bool {
        self.stages[0].0 == Fused
    }

    /// The stages with their channels and blocks multiplied.
    fn stages(&self) -> Vec<Stage> {
        let scaled = |&Stage(kind, factor, kernel, stride, outputs, n): &Stage| {
            let outputs = divisible(outputs as f64 * self.width);
            Stage(kind, factor, kernel, stride, outputs, (n as f64 * self.depth).ceil() as usize)
        };
        self.stages.iter().map(scaled).collect()
    }

    fn norms(&self) -> Norms {
        if self.is_second() {
            Norms { eps: 1e-3, ..DEFAULT_NORMS }
        } else if self.width >= 1.6 {
            Norms { eps: 1e-3, momentum: 0.01 }
        } else {
            DEFAULT_NORMS
        }
    }

    /// True if timm computes the same under its names.
    fn is_of_timm(&self) -> bool {
        self.norms().eps <= DEFAULT_NORMS.eps
    }
}

impl Stage {
    fn options(&self, inputs: usize, is_first: bool, skipped: f64) -> BlockOptions {
        let &Self(kind, factor, kernel, stride, outputs, _) = self;
        let activation = Nonlinearity::Silu;
        let gate = Nonlinearity::Sigmoid;
        let squeeze = Squeeze { channels: (inputs / 4).max(1), activation, gate, zero_bias: true };
        BlockOptions {
            family: if kind == Fused { Family::Fused } else { Family::Nested },
            inputs,
            expanded: factor * inputs,
            outputs,
            kernel,
            stride: if is_first { stride } else { 1 },
            activation,
            squeeze: (kind == Separable).then_some(squeeze),
            skipped,
        }
    }
}

impl Architecture for EfficientNetConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let [channels, height, width] = image_shape(&plan.input)?;
        let features = builder.pp("features");
        let (stages, norms) = (self.size.stages(), self.size.norms());
        let is_of_timm = self.size.is_of_timm();
        let mut size = [height, width];
        // As many as the first stage has, or twice as many as a stage that does not widen.
        let mut inputs =
            if self.size.is_second() { stages[0].4 } else { divisible(32.0 * self.size.width) };
        let first =
            ConvSizes { inputs: channels, outputs: inputs, kernel: 3, stride: 2, groups: 1 };
        let silu = Some(Nonlinearity::Silu);
        let first = ConvNorm::new(&features.pp(0), first, &mut size, norms, silu)?;
        let mut blocks = Vec::new();
        let total = stages.iter().map(|stage| stage.5).sum::<usize>();
        let rate = self.stochastic_depth_prob.unwrap_or(0.2);
        for (s, stage) in stages.iter().enumerate() {
            for i in 0..stage.5 {
                let skipped = rate * blocks.len() as f64 / total as f64;
                let builder = features.pp(s + 1).pp(i);
                let options = stage.options(inputs, i == 0, skipped);
                if is_of_timm {
                    options.register_timm_names(&builder, &format!("blocks.{s}.{i}"));
                }
                let block = InvertedResidual::new(&builder, options, &mut size, norms)?;
                blocks.push(Arc::new(block));
                inputs = stage.4;
            }
        }
        let outputs = if self.size.is_second() { 1280 } else { 4 * inputs };
        let last = ConvSizes::pointwise(inputs, outputs);
        let n = stages.len() + 1;
        let last = ConvNorm::new(&features.pp(n), last, &mut size, norms, silu)?;
        let classifier = builder.pp("classifier");
        if is_of_timm {
            for (index, names) in [(0, ["conv_stem", "bn1"]), (n, ["conv_head", "bn2"])] {
                for (part, name) in names.into_iter().enumerate() {
                    features.pp(index).also_called(TIMM, &part.to_string(), name);
                }
            }
            classifier.also_called(TIMM, "1", "classifier");
        }
        let dropout = self.dropout.unwrap_or(self.size.dropout);
        let init = Init::torch_default(plan.outputs);
        let zeros = Some(Init::Constant(0.0));
        Ok(Box::new(InvertedResidualNet {
            first,
            blocks,
            last,
            dropout: Dropout::new(&classifier.pp(0), dropout),
            head: Linear::with_init(&classifier.pp(1), outputs, plan.outputs, init, zeros)?,
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Head {
        Head::Keys(&["classifier.1."])
    }

    fn torchvision(&self) -> Option<TorchvisionModel> {
        Some(TorchvisionModel {
            name: self.size.name,
            timm: self.size.is_of_timm().then_some(self.size.name),
        })
    }
}
