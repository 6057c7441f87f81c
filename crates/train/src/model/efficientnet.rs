//! `EfficientNet` (Tan and Le, 2019, <https://arxiv.org/abs/1905.11946>), with torchvision's keys
//! and initialisation.
//!
//! Keys: `features.0`, `features.{stage}.{i}` of [inverted residuals](super::inverted_residual),
//! `features.8`, `classifier.1`. timm's names load as well.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::image_shape;
use super::hub::timm;
use super::inverted_residual::{
    BlockOptions, ConvNorm, ConvSizes, InvertedResidual, Norms, Squeeze,
};
use super::names::{Library, Naming};
use super::pretrained::PretrainedError;
use super::{Architecture, Head, InferredOptions, Model};
use crate::config::kind::Kind;
use crate::nn::{self, Builder, Dropout, ForwardContext, Init, Linear, Nonlinearity};
use crate::onnx::{Graph, Value};
use crate::ops;
use crate::plan::{Modality, ModelPlan};

const TIMM: &str = Library::Timm.words();
const NORMS: Norms = Norms { eps: 1e-5, momentum: 0.1 };

/// Channels of the last convolution.
const FEATURES: usize = 1280;

/// torchvision's `EfficientNet` B0, 5.3 million parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EfficientNetConfig {
    /// dropout before the last layer.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub dropout: f64,
    /// stochastic depth: the probability that a sample skips a block grows linearly from 0 in the
    /// first block; a block after the last would have this one.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub stochastic_depth_prob: f64,
}

impl Default for EfficientNetConfig {
    fn default() -> Self {
        Self { dropout: 0.2, stochastic_depth_prob: 0.2 }
    }
}

impl Kind for EfficientNetConfig {
    const NAME: &'static str = "efficientnet_b0";
}

/// A stage: how many times more channels there are inside of a block, kernel, stride of the first
/// block, channels of the output, blocks.
struct Stage(usize, usize, usize, usize, usize);

const STAGES: [Stage; 7] = [
    Stage(1, 3, 1, 16, 1),
    Stage(6, 3, 2, 24, 2),
    Stage(6, 5, 2, 40, 2),
    Stage(6, 3, 2, 80, 3),
    Stage(6, 5, 1, 112, 3),
    Stage(6, 5, 2, 192, 4),
    Stage(6, 3, 1, 320, 1),
];

impl Stage {
    fn options(&self, inputs: usize, is_first: bool, skipped: f64) -> BlockOptions {
        let &Self(factor, kernel, stride, outputs, _) = self;
        let activation = Nonlinearity::Silu;
        let gate = Nonlinearity::Sigmoid;
        BlockOptions {
            inputs,
            expanded: factor * inputs,
            outputs,
            kernel,
            stride: if is_first { stride } else { 1 },
            activation,
            squeeze: Some(Squeeze { channels: (inputs / 4).max(1), activation, gate }),
            skipped,
        }
    }
}

impl Architecture for EfficientNetConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let [channels, height, width] = image_shape(&plan.input)?;
        let features = builder.pp("features");
        let mut size = [height, width];
        let mut inputs = 32;
        let first = ConvSizes { inputs: channels, outputs: 32, kernel: 3, stride: 2, groups: 1 };
        let silu = Some(Nonlinearity::Silu);
        let first = ConvNorm::new(&features.pp(0), first, &mut size, NORMS, silu)?;
        let mut blocks = Vec::new();
        let total = STAGES.iter().map(|stage| stage.4).sum::<usize>();
        for (s, stage) in STAGES.iter().enumerate() {
            for i in 0..stage.4 {
                let skipped = self.stochastic_depth_prob * blocks.len() as f64 / total as f64;
                let builder = features.pp(s + 1).pp(i);
                let options = stage.options(inputs, i == 0, skipped);
                options.register_timm_names(&builder, &format!("blocks.{s}.{i}"));
                let block = InvertedResidual::new(&builder, options, &mut size, NORMS)?;
                blocks.push(Arc::new(block));
                inputs = stage.3;
            }
        }
        let last = ConvSizes { inputs, outputs: FEATURES, kernel: 1, stride: 1, groups: 1 };
        let last = ConvNorm::new(&features.pp(STAGES.len() + 1), last, &mut size, NORMS, silu)?;
        let parts = ["0.0", "0.1", "8.0", "8.1"];
        for (part, other) in parts.iter().zip(["conv_stem", "bn1", "conv_head", "bn2"]) {
            features.also_called(TIMM, part, other);
        }
        let classifier = builder.pp("classifier");
        let outputs = plan.outputs;
        classifier.also_called(TIMM, "1", "classifier");
        let init = Init::torch_default(outputs);
        let zeros = Some(Init::Constant(0.0));
        Ok(Box::new(EfficientNet {
            first,
            blocks,
            last,
            dropout: Dropout::new(&classifier.pp(0), self.dropout),
            head: Linear::with_init(&classifier.pp(1), FEATURES, outputs, init, zeros)?,
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Head {
        Head::Keys(&["classifier.1."])
    }

    fn library(&self) -> Option<Library> {
        Some(Library::Torchvision)
    }

    fn named_as(&self, _: &ModelPlan, library: Library) -> std::result::Result<Naming, String> {
        Naming::of_vision(library)
    }

    fn complete(
        &self,
        pretrained: Option<&Path>,
        _: Option<u32>,
    ) -> std::result::Result<InferredOptions, PretrainedError> {
        timm::complete(Self::NAME, &[Self::NAME], pretrained)
    }
}

struct EfficientNet {
    first: ConvNorm,
    blocks: Vec<Arc<InvertedResidual>>,
    last: ConvNorm,
    dropout: Dropout,
    head: Linear,
}

impl Model for EfficientNet {
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
