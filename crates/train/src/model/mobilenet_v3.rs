//! `MobileNetV3` (Howard et al., 2019, <https://arxiv.org/abs/1905.02244>), with torchvision's keys
//! and initialisation.
//!
//! Keys: `features.{i}`, of [inverted residuals](super::inverted_residual) between the first and
//! the last convolution, `classifier.0`, `classifier.3`. timm's names load as well, if the norms
//! are as theirs.

use std::path::Path;
use std::sync::Arc;

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::image_shape;
use super::conv_norm::{ConvNorm, ConvSizes, Norms, Squeeze, divisible};
use super::hub::timm;
use super::inverted_residual::{BlockOptions, Family, InvertedResidual};
use super::names::{Library, Naming};
use super::pretrained::PretrainedError;
use super::{Architecture, Head, InferredOptions, Model, Models};
use crate::config::kind::Kind;
use crate::nn::state_dict::Mismatch;
use crate::nn::{self, Builder, Dropout, ForwardContext, Init, Linear, Nonlinearity};
use crate::onnx::{Graph, Value};
use crate::ops;
use crate::plan::{Modality, ModelPlan};

const TIMM: &str = Library::Timm.words();
const MOMENTUM: f64 = 0.01;
/// Epsilon of the norms of both libraries.
const TORCHVISION_EPS: f64 = 1e-3;
const TIMM_EPS: f64 = 1e-5;
/// Largest `norm_eps` at which weights of timm load by their names.
const MAX_TIMM_EPS: f64 = 1e-4;

/// torchvision's `MobileNetV3` for small devices, 2.5 million parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MobileNetV3Config {
    /// dropout before the last layer.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub dropout: f64,
    /// eps of the batch norms; with 1e-5, weights of timm load by their names.
    #[schemars(range(min = 0.0))]
    pub norm_eps: f64,
    /// Size, which follows from the name.
    #[serde(skip)]
    pub size: MobileNetV3Size,
}

/// Size of a `MobileNetV3`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MobileNetV3Size {
    /// `mobilenet_v3_small`
    #[default]
    Small,
    /// `mobilenet_v3_large`
    Large,
}

impl Default for MobileNetV3Config {
    fn default() -> Self {
        Self { dropout: 0.2, norm_eps: TORCHVISION_EPS, size: MobileNetV3Size::Small }
    }
}

impl Kind for MobileNetV3Config {
    const NAME: &'static str = "mobilenet_v3_small";

    fn name(&self) -> &'static str {
        match self.size {
            MobileNetV3Size::Small => Self::NAME,
            MobileNetV3Size::Large => "mobilenet_v3_large",
        }
    }
}

/// Adds both sizes.
pub(super) fn register(models: &mut Models) {
    models.add::<MobileNetV3Config>();
    let about = "The same for larger devices, 5.5 million.";
    models.add_variant("mobilenet_v3_large", about, |net: &mut MobileNetV3Config| {
        net.size = MobileNetV3Size::Large;
    });
}

/// A block: kernel, channels inside, channels of the output, whether it squeezes, whether its
/// activation is hardswish, and its stride.
struct Row(usize, usize, usize, bool, bool, usize);

const SMALL: [Row; 11] = [
    Row(3, 16, 16, true, false, 2),
    Row(3, 72, 24, false, false, 2),
    Row(3, 88, 24, false, false, 1),
    Row(5, 96, 40, true, true, 2),
    Row(5, 240, 40, true, true, 1),
    Row(5, 240, 40, true, true, 1),
    Row(5, 120, 48, true, true, 1),
    Row(5, 144, 48, true, true, 1),
    Row(5, 288, 96, true, true, 2),
    Row(5, 576, 96, true, true, 1),
    Row(5, 576, 96, true, true, 1),
];

const LARGE: [Row; 15] = [
    Row(3, 16, 16, false, false, 1),
    Row(3, 64, 24, false, false, 2),
    Row(3, 72, 24, false, false, 1),
    Row(5, 72, 40, true, false, 2),
    Row(5, 120, 40, true, false, 1),
    Row(5, 120, 40, true, false, 1),
    Row(3, 240, 80, false, true, 2),
    Row(3, 200, 80, false, true, 1),
    Row(3, 184, 80, false, true, 1),
    Row(3, 184, 80, false, true, 1),
    Row(3, 480, 112, true, true, 1),
    Row(3, 672, 112, true, true, 1),
    Row(5, 672, 160, true, true, 2),
    Row(5, 960, 160, true, true, 1),
    Row(5, 960, 160, true, true, 1),
];

impl Row {
    fn options(&self, inputs: usize) -> BlockOptions {
        let &Self(kernel, expanded, outputs, squeezes, is_hard, stride) = self;
        let squeeze = squeezes.then(|| Squeeze {
            channels: divisible((expanded / 4) as f64),
            activation: Nonlinearity::Relu,
            gate: Nonlinearity::Hardsigmoid,
            zero_bias: true,
        });
        let activation = if is_hard { Nonlinearity::Hardswish } else { Nonlinearity::Relu };
        BlockOptions {
            family: Family::Nested,
            inputs,
            expanded,
            outputs,
            kernel,
            stride,
            activation,
            squeeze,
            skipped: 0.0,
        }
    }
}

impl Architecture for MobileNetV3Config {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let [channels, height, width] = image_shape(&plan.input)?;
        let norms = Norms { eps: self.norm_eps, momentum: MOMENTUM };
        let (rows, hidden) = match self.size {
            MobileNetV3Size::Small => (&SMALL[..], 1024),
            MobileNetV3Size::Large => (&LARGE[..], 1280),
        };
        let features = builder.pp("features");
        let mut size = [height, width];
        let mut inputs = 16;
        let first = ConvSizes { inputs: channels, outputs: 16, kernel: 3, stride: 2, groups: 1 };
        let hard = Some(Nonlinearity::Hardswish);
        let first = ConvNorm::new(&features.pp(0), first, &mut size, norms, hard)?;
        let mut blocks = Vec::new();
        for (i, row) in rows.iter().enumerate() {
            let builder = features.pp(i + 1);
            let block = InvertedResidual::new(&builder, row.options(inputs), &mut size, norms)?;
            blocks.push(Arc::new(block));
            inputs = row.2;
        }
        let last = ConvSizes::pointwise(inputs, 6 * inputs);
        let last = ConvNorm::new(&features.pp(rows.len() + 1), last, &mut size, norms, hard)?;
        if self.norm_eps <= MAX_TIMM_EPS {
            self.register_timm_names(builder, rows, hidden);
        }
        let classifier = builder.pp("classifier");
        Ok(Box::new(MobileNetV3 {
            first,
            blocks,
            last,
            hidden: linear(&classifier.pp(0), 6 * inputs, hidden)?,
            dropout: Dropout::new(&classifier.pp(2), self.dropout),
            head: linear(&classifier.pp(3), hidden, plan.outputs)?,
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Head {
        Head::Keys(&["classifier.3."])
    }

    fn library(&self) -> Option<Library> {
        match self.norm_eps {
            TIMM_EPS => Some(Library::Timm),
            TORCHVISION_EPS => Some(Library::Torchvision),
            _ => None,
        }
    }

    fn named_as(&self, _: &ModelPlan, library: Library) -> std::result::Result<Naming, String> {
        let theirs = match library {
            Library::Timm => TIMM_EPS,
            Library::Torchvision => TORCHVISION_EPS,
            Library::Transformers => return Err(Naming::unknown()),
        };
        if self.norm_eps == theirs {
            return Ok(Naming::default());
        }
        let ours = self.norm_eps;
        Err(format!(
            "has batch norms with eps = {theirs}, and these weights were trained with \
             `model.norm_eps` = {ours}: it would answer otherwise"
        ))
    }

    fn complete(
        &self,
        pretrained: Option<&Path>,
        _: Option<u32>,
    ) -> std::result::Result<InferredOptions, PretrainedError> {
        let theirs = match self.size {
            MobileNetV3Size::Small => "mobilenetv3_small_100",
            MobileNetV3Size::Large => "mobilenetv3_large_100",
        };
        timm::complete(self.name(), &[theirs], pretrained)
    }

    fn remedy(&self, misfit: &Mismatch) -> Option<String> {
        let is_timms = misfit.unexpected.iter().any(|(key, _)| key == "conv_stem.weight");
        let help = "set `model.norm_eps = 1e-5`: the names are those of timm, whose batch norms \
                    have another eps";
        (is_timms && self.norm_eps > MAX_TIMM_EPS).then(|| help.to_owned())
    }
}

impl MobileNetV3Config {
    /// Registers timm's names.
    fn register_timm_names(&self, builder: &Builder, rows: &[Row], hidden: usize) {
        let stages: &[usize] = match self.size {
            MobileNetV3Size::Small => &[1, 2, 3, 2, 3],
            MobileNetV3Size::Large => &[1, 2, 3, 4, 2, 3],
        };
        let features = builder.pp("features");
        let (mut inputs, mut index) = (16, 0);
        for (stage, &blocks) in stages.iter().enumerate() {
            for i in 0..blocks {
                let options = rows[index].options(inputs);
                options
                    .register_timm_names(&features.pp(index + 1), &format!("blocks.{stage}.{i}"));
                inputs = options.outputs;
                index += 1;
            }
        }
        let first = features.pp(0);
        let last = features.pp(index + 1);
        first.also_called(TIMM, "0", "conv_stem");
        first.also_called(TIMM, "1", "bn1");
        last.also_called(TIMM, "0", format!("blocks.{}.0.conv", stages.len()));
        last.also_called(TIMM, "1", format!("blocks.{}.0.bn1", stages.len()));
        builder.also_called(TIMM, "classifier.0", "conv_head");
        let weight = [hidden, 6 * inputs, 1, 1];
        let name = "conv_head.weight";
        builder.also_called_with_shape(TIMM, "classifier.0.weight", name, &weight);
        builder.also_called(TIMM, "classifier.3", "classifier");
    }
}

fn linear(builder: &Builder, inputs: usize, outputs: usize) -> Result<Linear> {
    Linear::with_init(builder, inputs, outputs, Init::Normal(0.01), Some(Init::Constant(0.0)))
}

struct MobileNetV3 {
    first: ConvNorm,
    blocks: Vec<Arc<InvertedResidual>>,
    last: ConvNorm,
    hidden: Linear,
    dropout: Dropout,
    head: Linear,
}

impl Model for MobileNetV3 {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        ops::chain(input, |x| {
            let x = self.first.forward(&ops::nchw_to_nhwc(x)?, pass)?;
            let x = self.blocks.iter().try_fold(x, |x, block| nn::run_block(block, &x, pass))?;
            let x = ops::global_average_pool(&self.last.forward(&x, pass)?)?;
            let x = ops::hardswish(&self.hidden.forward(&x, pass)?)?;
            self.head.forward(&self.dropout.forward(&x, pass)?, pass)
        })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = graph.images(input);
        let x = self.first.onnx(graph, &x)?;
        let x = self.blocks.iter().try_fold(x, |x, block| block.onnx(graph, &x))?;
        let x = self.last.onnx(graph, &x)?;
        let x = graph.global_average_pool(&x);
        let x = self.hidden.onnx(graph, &x)?;
        let x = Nonlinearity::Hardswish.onnx(graph, &x);
        self.head.onnx(graph, &x)
    }
}
