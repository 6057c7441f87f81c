//! `MobileNetV2` (Sandler et al., 2018, <https://arxiv.org/abs/1801.04381>), with torchvision's keys
//! and initialisation.
//!
//! Keys: `features.{0,18}.{0,1}`, `features.{i}` of [inverted
//! residuals](super::inverted_residual), `classifier.1`. timm's names load as well.

use std::sync::Arc;

use candle_core::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::image_shape;
use super::conv_norm::{ConvNorm, ConvSizes, DEFAULT_NORMS};
use super::inverted_residual::{BlockOptions, Family, InvertedResidual, InvertedResidualNet};
use super::names::Library;
use super::{Architecture, Head, Model, TorchvisionModel};
use crate::config::kind::Kind;
use crate::nn::{Builder, Dropout, Init, Linear, Nonlinearity};
use crate::plan::{Modality, ModelPlan};

const TIMM: &str = Library::Timm.words();
/// timm's name of the network.
const OF_TIMM: &str = "mobilenetv2_100";
/// Channels of the last convolution.
const FEATURES: usize = 1280;
const ACTIVATION: Nonlinearity = Nonlinearity::Relu6;

/// torchvision's `MobileNetV2`, 3.5 million parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MobileNetV2Config {
    /// dropout before the last layer.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub dropout: f64,
}

impl Default for MobileNetV2Config {
    fn default() -> Self {
        Self { dropout: 0.2 }
    }
}

impl Kind for MobileNetV2Config {
    const NAME: &'static str = "mobilenet_v2";
}

/// A stage: how many times more channels there are inside of a block, channels of the output,
/// blocks, and the stride of the first.
struct Stage(usize, usize, usize, usize);

const STAGES: [Stage; 7] = [
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
];

impl Architecture for MobileNetV2Config {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let [channels, height, width] = image_shape(&plan.input)?;
        let features = builder.pp("features");
        let mut size = [height, width];
        let mut inputs = 32;
        let first =
            ConvSizes { inputs: channels, outputs: inputs, kernel: 3, stride: 2, groups: 1 };
        let norms = DEFAULT_NORMS;
        let first = ConvNorm::new(&features.pp(0), first, &mut size, norms, Some(ACTIVATION))?;
        let mut blocks = Vec::new();
        for (s, &Stage(factor, outputs, n, stride)) in STAGES.iter().enumerate() {
            for i in 0..n {
                let options = BlockOptions {
                    family: Family::Flat,
                    inputs,
                    expanded: factor * inputs,
                    outputs,
                    kernel: 3,
                    stride: if i == 0 { stride } else { 1 },
                    activation: ACTIVATION,
                    squeeze: None,
                    skipped: 0.0,
                };
                let builder = features.pp(blocks.len() + 1);
                options.register_timm_names(&builder, &format!("blocks.{s}.{i}"));
                let block = InvertedResidual::new(&builder, options, &mut size, norms)?;
                blocks.push(Arc::new(block));
                inputs = outputs;
            }
        }
        let n = blocks.len() + 1;
        let last = ConvSizes::pointwise(inputs, FEATURES);
        let last = ConvNorm::new(&features.pp(n), last, &mut size, norms, Some(ACTIVATION))?;
        let ends = [(0, ["conv_stem", "bn1"]), (n, ["conv_head", "bn2"])];
        for (index, names) in ends {
            for (part, name) in names.into_iter().enumerate() {
                features.pp(index).also_called(TIMM, &part.to_string(), name);
            }
        }
        let classifier = builder.pp("classifier");
        classifier.also_called(TIMM, "1", "classifier");
        let (weights, zeros) = (Init::Normal(0.01), Some(Init::Constant(0.0)));
        Ok(Box::new(InvertedResidualNet {
            first,
            blocks,
            last,
            dropout: Dropout::new(&classifier.pp(0), self.dropout),
            head: Linear::with_init(&classifier.pp(1), FEATURES, plan.outputs, weights, zeros)?,
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Head {
        Head::Keys(&["classifier.1."])
    }

    fn torchvision(&self) -> Option<TorchvisionModel> {
        Some(TorchvisionModel { name: Self::NAME, timm: Some(OF_TIMM) })
    }
}
