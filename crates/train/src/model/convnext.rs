//! `ConvNeXt` (Liu et al., 2022, <https://arxiv.org/abs/2201.03545>), with torchvision's keys and
//! initialisation.
//!
//! Keys: `features.0.{0,1}`, blocks of stage s at
//! `features.{2s+1}.{i}.{layer_scale,block.0,block.2,block.3,block.5}`, between stages
//! `features.{2s+2}.{0,1}`, `classifier.0`, `classifier.2`. timm's names load as well.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::image_shape;
use super::names::Library;
use super::{Architecture, Head, Model, Models, TorchvisionModel};
use crate::config::kind::Kind;
use crate::nn::{
    self, Builder, Conv2d, ConvShape, DropPath, ForwardContext, Init, LayerNorm, Linear, Param,
};
use crate::onnx::{Graph, Value};
use crate::ops::{self, LinearActivation, Window};
use crate::plan::{Modality, ModelPlan};

/// Epsilon of the norms.
const EPS: f64 = 1e-6;

/// torchvision's `ConvNeXt` of 18 blocks, 28.6 million parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConvNextConfig {
    /// stochastic depth: the probability that a sample skips the last block; it grows from 0 in the
    /// first. Default: torchvision's, 0.1 for `convnext_tiny`, 0.4 for `convnext_small`, 0.5 for
    /// the larger ones.
    #[schemars(with = "f64", range(min = 0.0), extend("exclusiveMaximum" = 1.0), example = 0.1)]
    pub stochastic_depth_prob: Option<f64>,
    /// initial value of the per-channel scale of a block.
    #[schemars(range(min = 0.0), example = 1.0)]
    pub layer_scale: f64,
    /// Size, which follows from the name.
    #[serde(skip)]
    pub size: ConvNextSize,
}

/// Size of a `ConvNeXt`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvNextSize {
    pub name: &'static str,
    /// Channels of the first stage; each further stage has twice as many.
    pub width: usize,
    /// Blocks of each stage.
    pub blocks: [usize; 4],
    /// torchvision's stochastic depth.
    pub stochastic_depth_prob: f64,
}

impl Default for ConvNextSize {
    fn default() -> Self {
        let blocks = [3, 3, 9, 3];
        Self { name: "convnext_tiny", width: 96, blocks, stochastic_depth_prob: 0.1 }
    }
}

impl Default for ConvNextConfig {
    fn default() -> Self {
        Self { stochastic_depth_prob: None, layer_scale: 1e-6, size: ConvNextSize::default() }
    }
}

impl Kind for ConvNextConfig {
    const NAME: &'static str = "convnext_tiny";

    fn name(&self) -> &'static str {
        self.size.name
    }
}

/// Adds all sizes.
pub(super) fn register(models: &mut Models) {
    models.add::<ConvNextConfig>();
    let blocks = [3, 3, 27, 3];
    let small =
        ConvNextSize { name: "convnext_small", width: 96, blocks, stochastic_depth_prob: 0.4 };
    let base =
        ConvNextSize { name: "convnext_base", width: 128, blocks, stochastic_depth_prob: 0.5 };
    let mut add = |about: &str, size: ConvNextSize| {
        models.add_variant(size.name, about, move |net: &mut ConvNextConfig| net.size = size);
    };
    add("The same of 36 blocks, 50 million.", small);
    let large =
        ConvNextSize { name: "convnext_large", width: 192, blocks, stochastic_depth_prob: 0.5 };
    add("The same of 36 blocks of more channels, 89 million.", base);
    add("The same of 36 blocks of twice as many channels as the small one, 198 million.", large);
}

impl Architecture for ConvNextConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let [channels, height, width] = image_shape(&plan.input)?;
        if height.min(width) < 32 {
            bail!("images have at least 32x32 pixels, not {height}x{width}");
        }
        let features = builder.pp("features");
        let first = self.size.width;
        let stem = features.pp(0);
        self.register_timm_names(builder);
        let net = ConvNext {
            stem: conv(&stem.pp(0), channels, first, 4)?,
            stem_norm: norm(&stem.pp(1), first)?,
            stages: (0..4).map(|stage| self.stage(&features, stage)).collect::<Result<_>>()?,
            norm: norm(&builder.pp("classifier.0"), first << 3)?,
            head: linear(&builder.pp("classifier.2"), first << 3, plan.outputs)?,
        };
        Ok(Box::new(net))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Head {
        Head::Keys(&["classifier.2."])
    }

    fn torchvision(&self) -> Option<TorchvisionModel> {
        Some(TorchvisionModel { name: self.size.name, timm: Some(self.size.name) })
    }
}

impl ConvNextConfig {
    /// Registers timm's names.
    fn register_timm_names(&self, builder: &Builder) {
        const TIMM: &str = Library::Timm.words();
        let is = |own: String, other: String| builder.also_called(TIMM, &own, other);
        for (stage, &blocks) in self.size.blocks.iter().enumerate() {
            let before = 2 * stage;
            let between =
                if stage == 0 { "stem".to_owned() } else { format!("stages.{stage}.downsample") };
            for part in 0..2 {
                is(format!("features.{before}.{part}"), format!("{between}.{part}"));
            }
            for i in 0..blocks {
                let own = format!("features.{}.{i}", before + 1);
                let other = format!("stages.{stage}.blocks.{i}");
                let scale = (format!("{own}.layer_scale"), format!("{other}.gamma"));
                let width = self.size.width << stage;
                builder.also_called_with_shape(TIMM, &scale.0, scale.1, &[width]);
                let parts = [
                    ("block.0", "conv_dw"),
                    ("block.2", "norm"),
                    ("block.3", "mlp.fc1"),
                    ("block.5", "mlp.fc2"),
                ];
                for (part, name) in parts {
                    is(format!("{own}.{part}"), format!("{other}.{name}"));
                }
            }
        }
        is("classifier.0".to_owned(), "head.norm".to_owned());
        is("classifier.2".to_owned(), "head.fc".to_owned());
    }

    fn stage(&self, features: &Builder, stage: usize) -> Result<Stage> {
        let width = self.size.width << stage;
        let blocks = self.size.blocks;
        let before: usize = blocks[..stage].iter().sum();
        let rate = self.stochastic_depth_prob.unwrap_or(self.size.stochastic_depth_prob);
        let step = rate / (blocks.iter().sum::<usize>() - 1) as f64;
        let shrink = |builder: Builder| -> Result<Shrink> {
            Ok(Shrink {
                norm: norm(&builder.pp(0), width / 2)?,
                conv: conv(&builder.pp(1), width / 2, width, 2)?,
            })
        };
        let shrink = (stage > 0).then(|| shrink(features.pp(2 * stage))).transpose()?;
        let builder = features.pp(2 * stage + 1);
        let block = |i: usize| {
            let skipped = step * (before + i) as f64;
            Block::new(&builder.pp(i), width, self.layer_scale, skipped).map(Arc::new)
        };
        Ok(Stage { shrink, blocks: (0..blocks[stage]).map(block).collect::<Result<_>>()? })
    }
}

/// A convolution whose windows do not overlap.
fn conv(builder: &Builder, inputs: usize, outputs: usize, kernel: usize) -> Result<Conv2d> {
    let window = Window { stride: kernel, padding: 0 };
    let shape = ConvShape { inputs, outputs, kernel, window, groups: 1 };
    Conv2d::with_inits(builder, shape, Init::Normal(0.02), Init::Constant(0.0))
}

fn linear(builder: &Builder, inputs: usize, outputs: usize) -> Result<Linear> {
    Linear::with_init(builder, inputs, outputs, Init::Normal(0.02), Some(Init::Constant(0.0)))
}

fn norm(builder: &Builder, width: usize) -> Result<LayerNorm> {
    Ok(LayerNorm::new(builder, width)?.with_eps(EPS))
}

struct ConvNext {
    stem: Conv2d,
    stem_norm: LayerNorm,
    stages: Vec<Stage>,
    norm: LayerNorm,
    head: Linear,
}

/// Blocks of one size.
struct Stage {
    /// Halves the size, before all stages but the first.
    shrink: Option<Shrink>,
    blocks: Vec<Arc<Block>>,
}

struct Shrink {
    norm: LayerNorm,
    conv: Conv2d,
}

impl Model for ConvNext {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        ops::chain(input, |x| {
            let x = self.stem.forward(&ops::nchw_to_nhwc(x)?, pass)?;
            let mut x = self.stem_norm.forward(&x)?;
            for Stage { shrink, blocks } in &self.stages {
                if let Some(Shrink { norm, conv }) = shrink {
                    x = conv.forward(&norm.forward(&x)?, pass)?;
                }
                x = blocks.iter().try_fold(x, |x, block| nn::run_block(block, &x, pass))?;
            }
            let x = self.norm.forward(&ops::global_average_pool(&x)?)?;
            self.head.forward(&x, pass)
        })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = graph.images(input);
        let x = self.stem.onnx(graph, &x, [0; 2])?;
        let mut x = self.stem_norm.onnx(graph, &x)?;
        for Stage { shrink, blocks } in &self.stages {
            if let Some(Shrink { norm, conv }) = shrink {
                let y = norm.onnx(graph, &x)?;
                x = conv.onnx(graph, &y, [0; 2])?;
            }
            x = blocks.iter().try_fold(x, |x, block| block.onnx(graph, &x))?;
        }
        let x = graph.global_average_pool(&x);
        let x = self.norm.onnx(graph, &x)?;
        self.head.onnx(graph, &x)
    }
}

/// x + scale mlp(norm(depthwise(x))), with stochastic depth.
struct Block {
    layer_scale: Param,
    depthwise: Conv2d,
    norm: LayerNorm,
    expand: Linear,
    project: Linear,
    drop_path: DropPath,
}

impl Block {
    fn new(builder: &Builder, width: usize, layer_scale: f64, skipped: f64) -> Result<Self> {
        let block = builder.pp("block");
        let window = Window { stride: 1, padding: 3 };
        let shape = ConvShape { inputs: width, outputs: width, kernel: 7, window, groups: width };
        let zeros = Init::Constant(0.0);
        Ok(Self {
            layer_scale: builder.param(
                "layer_scale",
                &[width, 1, 1],
                Init::Constant(layer_scale),
            )?,
            depthwise: Conv2d::with_inits(&block.pp(0), shape, Init::Normal(0.02), zeros)?,
            norm: norm(&block.pp(2), width)?,
            expand: linear(&block.pp(3), width, 4 * width)?,
            project: linear(&block.pp(5), 4 * width, width)?,
            drop_path: DropPath::new(&builder.pp("stochastic_depth"), skipped),
        })
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let y = self.depthwise.onnx(graph, x, [0; 2])?;
        let y = self.norm.onnx(graph, &y)?;
        let y = self.expand.onnx_activated(graph, &y, LinearActivation::Gelu)?;
        let y = self.project.onnx(graph, &y)?;
        // (c, 1, 1), as images have their channels in the file.
        let scale = self.layer_scale.onnx(graph)?;
        let scale = graph.squeezed(&scale, &[1, 2]);
        let y = graph.mul(&y, &scale);
        Ok(graph.add(x, &y))
    }
}

impl nn::Block for Block {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let y = self.norm.forward(&self.depthwise.forward(x, pass)?)?;
        let y = self.expand.forward_activated(&y, LinearActivation::Gelu, pass)?;
        let y = ops::scale_channels(&self.project.forward(&y, pass)?, &self.layer_scale.weight()?)?;
        ops::add(x, &self.drop_path.forward(&y, pass)?)
    }
}
