//! The network of airbench94 (Jordan 2024, <https://arxiv.org/abs/2404.00498>): a first convolution
//! that whitens patches, three groups of two convolutions, and a head without a bias.
//!
//! Keys as in the author's `airbench94_muon.py`: `whiten`, `layers.{1,2,3}.conv1`, `.norm1`,
//! `.conv2`, `.norm2`, `head`. `layers.0` is the first GELU.

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::image_shape;
use super::{Architecture, Head, Model};
use crate::config::kind::Kind;
use crate::nn::{BatchNorm2d, Builder, Conv2d, ConvShape, ForwardContext, Init, Linear};
use crate::onnx::{Graph, Sliding, Value};
use crate::ops::{self, Activation, Window};
use crate::plan::{Modality, ModelPlan};

/// Rows and columns of the patches that are whitened.
const PATCH: usize = 2;
const EPS: f64 = 1e-12;
/// Share by which running statistics move.
const MOMENTUM: f64 = 0.4;

/// the convolutional network of airbench94 (Jordan 2024), 2.0 million parameters, for images of 25
/// to 48 pixels. Its first layer whitens patches: its weights are computed from 5,000 training
/// images when a run begins, and experiments/airbench94.toml freezes them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Airbench94Config {
    /// channels of the three groups.
    pub widths: [Width; 3],
    /// factor of the outputs.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub scaling_factor: f64,
}

/// A number of channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Width(#[schemars(range(min = 1, max = 65_536))] pub u32);

impl Default for Airbench94Config {
    fn default() -> Self {
        Self { widths: [64, 256, 256].map(Width), scaling_factor: 1.0 / 9.0 }
    }
}

impl Kind for Airbench94Config {
    const NAME: &'static str = "airbench94";
}

impl Architecture for Airbench94Config {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let [channels, height, width] = image_shape(&plan.input)?;
        let mut size = [height, width].map(|side| side.saturating_sub(PATCH - 1));
        let pooled = size.map(|side| side / 8);
        if !pooled.iter().all(|side| (3..6).contains(side)) {
            bail!("images of {height}x{width} do not fit, those of 25x25 to 48x48 do");
        }
        let mut inputs = 2 * channels * PATCH * PATCH;
        let whiten = convolution(PATCH, 0, channels, inputs);
        let init = Init::torch_default(channels * PATCH * PATCH);
        let whiten = Conv2d::with_inits(&builder.pp("whiten"), whiten, init, Init::Constant(0.0))?;
        let mut groups = Vec::new();
        for (i, &Width(outputs)) in self.widths.iter().enumerate() {
            let builder = builder.pp("layers").pp(i + 1);
            size = size.map(|side| side / 2);
            groups.push(Group::new(&builder, inputs, outputs as usize, size)?);
            inputs = outputs as usize;
        }
        let head = Linear::without_bias(&builder.pp("head"), inputs, plan.outputs)?;
        Ok(Box::new(Airbench94 { whiten, groups, head, scaling_factor: self.scaling_factor }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Head {
        Head::Keys(&["head."])
    }

    fn has_blocks(&self) -> bool {
        false
    }

    fn whitens(&self) -> Option<&'static str> {
        Some("whiten.weight")
    }
}

fn convolution(kernel: usize, padding: usize, inputs: usize, outputs: usize) -> ConvShape {
    ConvShape { inputs, outputs, kernel, window: Window { stride: 1, padding }, groups: 1 }
}

/// Two convolutions of 3 x 3, of which the first is pooled.
struct Group {
    conv1: Conv2d,
    norm1: BatchNorm2d,
    conv2: Conv2d,
    norm2: BatchNorm2d,
}

impl Group {
    /// `size` is that behind the pooling.
    fn new(
        builder: &Builder,
        inputs: usize,
        outputs: usize,
        [height, width]: [usize; 2],
    ) -> Result<Self> {
        let conv = |name: &str, inputs| {
            let init = Init::Dirac { inputs, taps: 9 };
            Conv2d::without_bias(&builder.pp(name), convolution(3, 1, inputs, outputs), init)
        };
        let norm = |name: &str| {
            let norm = BatchNorm2d::new(&builder.pp(name), outputs, height * width, 1.0)?;
            Ok::<_, candle_core::Error>(norm.with_options(EPS, MOMENTUM))
        };
        Ok(Self {
            conv1: conv("conv1", inputs)?,
            norm1: norm("norm1")?,
            conv2: conv("conv2", outputs)?,
            norm2: norm("norm2")?,
        })
    }

    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = ops::max_pool2d(&self.conv1.autocast(x, pass)?, 2, unpadded(2))?;
        let x = ops::gelu(&self.norm1.forward(&x, None, Activation::Identity, pass)?)?;
        ops::gelu(&self.norm2.after(&self.conv2, &x, None, Activation::Identity, pass)?)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let x = self.conv1.onnx(graph, x, [0; 2])?;
        let x = pooled(graph, &x, 2);
        let x = self.norm1.onnx(graph, &x, Activation::Identity)?;
        let x = graph.unary("Gelu", &x, &[]);
        let x = self.conv2.onnx(graph, &x, [0; 2])?;
        let x = self.norm2.onnx(graph, &x, Activation::Identity)?;
        Ok(graph.unary("Gelu", &x, &[]))
    }
}

fn unpadded(stride: usize) -> Window {
    Window { stride, padding: 0 }
}

fn pooled(graph: &mut Graph, x: &Value, side: usize) -> Value {
    graph.max_pool(x, &Sliding::new(&[side; 2], &[side; 2], &[0; 2], &[1; 2]))
}

struct Airbench94 {
    whiten: Conv2d,
    groups: Vec<Group>,
    head: Linear,
    scaling_factor: f64,
}

impl Model for Airbench94 {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let answers = ops::chain(input, |x| {
            let x = ops::gelu(&self.whiten.autocast(&ops::nchw_to_nhwc(x)?, pass)?)?;
            let x = self.groups.iter().try_fold(x, |x, group| group.forward(&x, pass))?;
            // One pixel is left: its mean is itself.
            let x = ops::global_average_pool(&ops::max_pool2d(&x, 3, unpadded(3))?)?;
            self.head.forward(&x, pass)
        })?;
        answers * self.scaling_factor
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = graph.images(input);
        let x = self.whiten.onnx(graph, &x, [0; 2])?;
        let x = graph.unary("Gelu", &x, &[]);
        let x = self.groups.iter().try_fold(x, |x, group| group.onnx(graph, &x))?;
        let x = pooled(graph, &x, 3);
        let x = graph.global_average_pool(&x);
        let x = self.head.onnx(graph, &x)?;
        Ok(graph.scaled(&x, self.scaling_factor))
    }
}
