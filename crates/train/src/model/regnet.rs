//! `RegNet` (Radosavovic et al., 2020, <https://arxiv.org/abs/2003.13678>), with torchvision's keys
//! and initialisation.
//!
//! Keys: `stem.{0,1}`, blocks of stage s at `trunk_output.block{s}.block{s}-{i}`, in them
//! `proj.{0,1}` and `f.{a,b,c}.{0,1}`, with squeeze and excitation at `f.se.{fc1,fc2}`; `fc`. timm's
//! names load as well.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::image_shape;
use super::conv_norm::{ConvNorm, ConvSizes, DEFAULT_NORMS, Squeeze, SqueezeExcitation};
use super::names::Library;
use super::{Architecture, Head, Model, Models, TorchvisionModel};
use crate::config::kind::Kind;
use crate::nn::{self, Builder, ForwardContext, Init, Linear, Nonlinearity};
use crate::onnx::{Graph, Value};
use crate::ops;
use crate::plan::{Modality, ModelPlan};

const TIMM: &str = Library::Timm.words();
/// Channels of the first convolution.
const STEM: usize = 32;
const RELU: Option<Nonlinearity> = Some(Nonlinearity::Relu);

/// torchvision's `RegNetY` of 400 million multiplications, 4.3 million parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RegNetConfig {
    /// Size, which follows from the name.
    #[serde(skip)]
    pub size: RegNetSize,
}

/// Size of a `RegNet`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegNetSize {
    pub name: &'static str,
    /// timm's name.
    of_timm: &'static str,
    /// Blocks of each stage.
    blocks: [usize; 4],
    /// Channels of each stage.
    widths: [usize; 4],
    /// Most channels of a group of the 3x3 convolutions.
    group: usize,
    /// Parameters with 1,000 classes.
    millions: f64,
}

/// All sizes; a Y has squeeze and excitation, an X has not.
const SIZES: [RegNetSize; 14] = [
    sized("regnet_y_400mf", "regnety_004", [1, 3, 6, 6], [48, 104, 208, 440], 8, 4.3),
    sized("regnet_y_800mf", "regnety_008_tv", [1, 3, 8, 2], [64, 144, 320, 784], 16, 6.4),
    sized("regnet_y_1_6gf", "regnety_016", [2, 6, 17, 2], [48, 120, 336, 888], 24, 11.2),
    sized("regnet_y_3_2gf", "regnety_032", [2, 5, 13, 1], [72, 216, 576, 1512], 24, 19.4),
    sized("regnet_y_8gf", "regnety_080_tv", [2, 4, 10, 1], [224, 448, 896, 2016], 56, 39.4),
    sized("regnet_y_16gf", "regnety_160", [2, 4, 11, 1], [224, 448, 1232, 3024], 112, 83.6),
    sized("regnet_y_32gf", "regnety_320", [2, 5, 12, 1], [232, 696, 1392, 3712], 232, 145.0),
    sized("regnet_x_400mf", "regnetx_004_tv", [1, 2, 7, 12], [32, 64, 160, 400], 16, 5.5),
    sized("regnet_x_800mf", "regnetx_008", [1, 3, 7, 5], [64, 128, 288, 672], 16, 7.3),
    sized("regnet_x_1_6gf", "regnetx_016", [2, 4, 10, 2], [72, 168, 408, 912], 24, 9.2),
    sized("regnet_x_3_2gf", "regnetx_032", [2, 6, 15, 2], [96, 192, 432, 1008], 48, 15.3),
    sized("regnet_x_8gf", "regnetx_080", [2, 5, 15, 1], [80, 240, 720, 1920], 120, 39.6),
    sized("regnet_x_16gf", "regnetx_160", [2, 6, 13, 1], [256, 512, 896, 2048], 128, 54.3),
    sized("regnet_x_32gf", "regnetx_320", [2, 7, 13, 1], [336, 672, 1344, 2520], 168, 107.8),
];

const fn sized(
    name: &'static str,
    of_timm: &'static str,
    blocks: [usize; 4],
    widths: [usize; 4],
    group: usize,
    millions: f64,
) -> RegNetSize {
    RegNetSize { name, of_timm, blocks, widths, group, millions }
}

impl RegNetSize {
    fn squeezes(&self) -> bool {
        self.name.starts_with("regnet_y")
    }
}

impl Default for RegNetSize {
    fn default() -> Self {
        SIZES[0]
    }
}

impl Kind for RegNetConfig {
    const NAME: &'static str = "regnet_y_400mf";

    fn name(&self) -> &'static str {
        self.size.name
    }
}

/// Adds all sizes.
pub(super) fn register(models: &mut Models) {
    models.add::<RegNetConfig>();
    for size in &SIZES[1..] {
        let squeezes = if size.squeezes() { "" } else { ", without squeeze and excitation" };
        let about = format!("torchvision's, {} million parameters{squeezes}.", size.millions);
        models.add_variant(size.name, &about, move |net: &mut RegNetConfig| net.size = *size);
    }
}

impl Architecture for RegNetConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let [channels, height, width] = image_shape(&plan.input)?;
        let mut size = [height, width];
        let stem = builder.pp("stem");
        stem.also_called(TIMM, "0", "stem.conv");
        stem.also_called(TIMM, "1", "stem.bn");
        builder.also_called(TIMM, "fc", "head.fc");
        let first = ConvSizes { inputs: channels, outputs: STEM, kernel: 3, stride: 2, groups: 1 };
        let first = ConvNorm::new(&stem, first, &mut size, DEFAULT_NORMS, RELU)?;
        let mut blocks = Vec::new();
        let mut inputs = STEM;
        for (s, (&n, &outputs)) in self.size.blocks.iter().zip(&self.size.widths).enumerate() {
            let stage = builder.pp("trunk_output").pp(format!("block{}", s + 1));
            for i in 0..n {
                let builder = stage.pp(format!("block{}-{i}", s + 1));
                let block = Block {
                    inputs,
                    outputs,
                    stride: if i == 0 { 2 } else { 1 },
                    groups: outputs / self.size.group.min(outputs),
                    squeezes: self.size.squeezes(),
                };
                block.register_timm_names(&builder, &format!("s{}.b{}", s + 1, i + 1));
                blocks.push(Arc::new(Residual::new(&builder, block, &mut size)?));
                inputs = outputs;
            }
        }
        let (weights, zeros) = (Init::Normal(0.01), Some(Init::Constant(0.0)));
        let head = Linear::with_init(&builder.pp("fc"), inputs, plan.outputs, weights, zeros)?;
        Ok(Box::new(RegNet { first, blocks, head }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Head {
        Head::Keys(&["fc."])
    }

    fn torchvision(&self) -> Option<TorchvisionModel> {
        Some(TorchvisionModel { name: self.size.name, timm: Some(self.size.of_timm) })
    }
}

struct RegNet {
    first: ConvNorm,
    blocks: Vec<Arc<Residual>>,
    head: Linear,
}

impl Model for RegNet {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        ops::chain(input, |x| {
            let x = self.first.forward(&ops::nchw_to_nhwc(x)?, pass)?;
            let x = self.blocks.iter().try_fold(x, |x, block| nn::run_block(block, &x, pass))?;
            self.head.forward(&ops::global_average_pool(&x)?, pass)
        })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = graph.images(input);
        let x = self.first.onnx(graph, &x)?;
        let x = self.blocks.iter().try_fold(x, |x, block| block.onnx(graph, &x))?;
        let x = graph.global_average_pool(&x);
        self.head.onnx(graph, &x)
    }
}

/// Sizes of a [`Residual`].
#[derive(Clone, Copy)]
struct Block {
    inputs: usize,
    outputs: usize,
    stride: usize,
    groups: usize,
    squeezes: bool,
}

impl Block {
    /// True if the shortcut is a convolution.
    fn projects(self) -> bool {
        self.inputs != self.outputs || self.stride != 1
    }

    /// Registers timm's names for the parts of the block at `builder`, which timm calls `other`.
    fn register_timm_names(self, builder: &Builder, other: &str) {
        let layers = [("f.a", "conv1"), ("f.b", "conv2"), ("f.c", "conv3")];
        let shortcut = self.projects().then_some(("proj", "downsample"));
        for (own, name) in layers.into_iter().chain(shortcut) {
            builder.also_called(TIMM, &format!("{own}.0"), format!("{other}.{name}.conv"));
            builder.also_called(TIMM, &format!("{own}.1"), format!("{other}.{name}.bn"));
        }
        if self.squeezes {
            for part in ["fc1", "fc2"] {
                builder.also_called(TIMM, &format!("f.se.{part}"), format!("{other}.se.{part}"));
            }
        }
    }
}

/// relu(shortcut(x) + c(gate(b(a(x))))): 1x1, 3x3 in groups, and 1x1 of one width.
struct Residual {
    shortcut: Option<ConvNorm>,
    a: ConvNorm,
    b: ConvNorm,
    squeeze: Option<SqueezeExcitation>,
    c: ConvNorm,
}

impl Residual {
    /// Sets `size` to that of the output.
    fn new(builder: &Builder, block: Block, size: &mut [usize; 2]) -> Result<Self> {
        let Block { inputs, outputs, stride, groups, squeezes } = block;
        let f = builder.pp("f");
        let norms = DEFAULT_NORMS;
        let mut before = *size;
        let shortcut = ConvSizes { stride, ..ConvSizes::pointwise(inputs, outputs) };
        let shortcut = block
            .projects()
            .then(|| ConvNorm::new(&builder.pp("proj"), shortcut, &mut before, norms, None))
            .transpose()?;
        let squeeze = Squeeze {
            channels: inputs / 4,
            activation: Nonlinearity::Relu,
            gate: Nonlinearity::Sigmoid,
            zero_bias: false,
        };
        let a = ConvSizes::pointwise(inputs, outputs);
        let b = ConvSizes { inputs: outputs, outputs, kernel: 3, stride, groups };
        Ok(Self {
            shortcut,
            a: ConvNorm::new(&f.pp("a"), a, size, norms, RELU)?,
            b: ConvNorm::new(&f.pp("b"), b, size, norms, RELU)?,
            squeeze: squeezes
                .then(|| SqueezeExcitation::new(&f.pp("se"), outputs, squeeze))
                .transpose()?,
            c: ConvNorm::new(
                &f.pp("c"),
                ConvSizes::pointwise(outputs, outputs),
                size,
                norms,
                None,
            )?,
        })
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let shortcut =
            self.shortcut.as_ref().map_or(Ok(x.clone()), |layer| layer.onnx(graph, x))?;
        let y = self.a.onnx(graph, x)?;
        let mut y = self.b.onnx(graph, &y)?;
        if let Some(squeeze) = &self.squeeze {
            y = squeeze.onnx(graph, &y)?;
        }
        let y = self.c.onnx(graph, &y)?;
        let sum = graph.add(&y, &shortcut);
        Ok(graph.unary("Relu", &sum, &[]))
    }
}

impl nn::Block for Residual {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let shortcut =
            self.shortcut.as_ref().map_or(Ok(x.clone()), |layer| layer.forward(x, pass))?;
        let mut y = self.b.forward(&self.a.forward(x, pass)?, pass)?;
        if let Some(squeeze) = &self.squeeze {
            y = squeeze.forward(&y, pass)?;
        }
        self.c.forward_residual(&y, &shortcut, pass)
    }
}
