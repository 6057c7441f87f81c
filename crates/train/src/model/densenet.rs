//! `DenseNet` (Huang et al., 2017, <https://arxiv.org/abs/1608.06993>), with the keys and the
//! initialisation of torchvision, which timm shares.
//!
//! Keys: `features.{conv0,norm0}`, `features.denseblock{b}.denselayer{i}.{norm1,conv1,norm2,conv2}`,
//! `features.transition{b}.{norm,conv}`, `features.norm5`, `classifier`.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::image_shape;
use super::{Architecture, Head, Model, Models, TorchvisionModel};
use crate::config::kind::Kind;
use crate::nn::{self, BatchNorm2d, Builder, Conv2d, ConvShape, ForwardContext, Init, Linear};
use crate::onnx::{Graph, Sliding, Value};
use crate::ops::{self, Activation, Window};
use crate::plan::{Modality, ModelPlan};

/// Maps between the two convolutions of a layer, for each that it adds.
const BOTTLENECK: usize = 4;
const HALVING: Window = Window { stride: 2, padding: 0 };
const POOLING: Window = Window { stride: 2, padding: 1 };

/// torchvision's `DenseNet` of 121 layers, 8 million parameters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DenseNetConfig {
    /// Size, which follows from the name.
    #[serde(skip)]
    pub size: DenseNetSize,
}

/// Size of a `DenseNet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseNetSize {
    pub name: &'static str,
    /// Layers of each block.
    layers: [usize; 4],
    /// Maps that a layer adds.
    growth: usize,
    /// Maps before the first block.
    first: usize,
}

const SIZES: [DenseNetSize; 4] = [
    DenseNetSize { name: "densenet121", layers: [6, 12, 24, 16], growth: 32, first: 64 },
    DenseNetSize { name: "densenet161", layers: [6, 12, 36, 24], growth: 48, first: 96 },
    DenseNetSize { name: "densenet169", layers: [6, 12, 32, 32], growth: 32, first: 64 },
    DenseNetSize { name: "densenet201", layers: [6, 12, 48, 32], growth: 32, first: 64 },
];

impl Default for DenseNetSize {
    fn default() -> Self {
        SIZES[0]
    }
}

impl Kind for DenseNetConfig {
    const NAME: &'static str = "densenet121";

    fn name(&self) -> &'static str {
        self.size.name
    }
}

/// Adds all sizes.
pub(super) fn register(models: &mut Models) {
    models.add::<DenseNetConfig>();
    let abouts = ["161 layers, 29 million", "169 layers, 14 million", "201 layers, 20 million"];
    for (size, about) in SIZES[1..].iter().zip(abouts) {
        let about = format!("The same of {about}.");
        models.add_variant(size.name, &about, move |net: &mut DenseNetConfig| net.size = *size);
    }
}

impl Architecture for DenseNetConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let [channels, height, width] = image_shape(&plan.input)?;
        if height.min(width) < 32 {
            bail!("images have at least 32x32 pixels, not {height}x{width}");
        }
        let DenseNetSize { layers, growth, first, .. } = self.size;
        let features = builder.pp("features");
        let mut rows = [height, width].map(|length| length.div_ceil(2));
        let conv0 = conv(&features.pp("conv0"), [channels, first], 7, 2)?;
        let norm0 = norm(&features.pp("norm0"), first, rows)?;
        rows = rows.map(|length| length.div_ceil(2));
        let mut maps = first;
        let mut blocks = Vec::new();
        for (b, &n) in layers.iter().enumerate() {
            let block = features.pp(format!("denseblock{}", b + 1));
            let mut dense = Vec::new();
            for i in 0..n {
                let builder = block.pp(format!("denselayer{}", i + 1));
                dense.push(Arc::new(Layer::new(&builder, maps, growth, rows)?));
                maps += growth;
            }
            let is_last = b + 1 == layers.len();
            let transition = (!is_last)
                .then(|| Transition::new(&features.pp(format!("transition{}", b + 1)), maps, rows))
                .transpose()?;
            if transition.is_some() {
                maps /= 2;
                rows = rows.map(|length| length / 2);
            }
            blocks.push(Block { layers: dense, transition });
        }
        let zeros = Some(Init::Constant(0.0));
        let weights = Init::torch_default(maps);
        let norm5 = norm(&features.pp("norm5"), maps, rows)?;
        let head = &builder.pp("classifier");
        let head = Linear::with_init(head, maps, plan.outputs, weights, zeros)?;
        Ok(Box::new(DenseNet { conv0, norm0, blocks, norm5, head }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Head {
        Head::Keys(&["classifier."])
    }

    fn torchvision(&self) -> Option<TorchvisionModel> {
        Some(TorchvisionModel { name: self.size.name, timm: Some(self.size.name) })
    }
}

/// A convolution without bias that keeps the size but for its stride; He normal with fan-in.
fn conv(
    builder: &Builder,
    [inputs, outputs]: [usize; 2],
    kernel: usize,
    stride: usize,
) -> Result<Conv2d> {
    let window = Window { stride, padding: kernel / 2 };
    let shape = ConvShape { inputs, outputs, kernel, window, groups: 1 };
    let fan_in = inputs * kernel * kernel;
    Conv2d::without_bias(builder, shape, Init::Normal((2.0 / fan_in as f64).sqrt()))
}

fn norm(builder: &Builder, maps: usize, rows: [usize; 2]) -> Result<BatchNorm2d> {
    BatchNorm2d::new(builder, maps, rows.iter().product(), 1.0)
}

struct DenseNet {
    conv0: Conv2d,
    norm0: BatchNorm2d,
    blocks: Vec<Block>,
    norm5: BatchNorm2d,
    head: Linear,
}

/// Layers, each of which reads the maps of all before it.
struct Block {
    layers: Vec<Arc<Layer>>,
    transition: Option<Transition>,
}

impl Model for DenseNet {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let mut x = ops::chain(input, |x| {
            let x = ops::nchw_to_nhwc(x)?;
            let x = self.norm0.after(&self.conv0, &x, None, Activation::Relu, pass)?;
            ops::widen(&ops::max_pool2d(&x, 3, POOLING)?)
        })?;
        for Block { layers, transition } in &self.blocks {
            for layer in layers {
                let new = nn::run_block(layer, &x, pass)?;
                x = Tensor::cat(&[&x, &new], 3)?;
            }
            if let Some(transition) = transition {
                x = ops::chain(&x, |x| transition.forward(x, pass))?;
            }
        }
        ops::chain(&x, |x| {
            let x = self.norm5.forward(x, None, Activation::Relu, pass)?;
            self.head.forward(&ops::global_average_pool(&x)?, pass)
        })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = graph.images(input);
        let x = self.conv0.onnx(graph, &x, [0; 2])?;
        let x = self.norm0.onnx(graph, &x, Activation::Relu)?;
        let mut x = graph.max_pool(&x, &Sliding::new(&[3; 2], &[2; 2], &[1; 2], &[1; 2]));
        for Block { layers, transition } in &self.blocks {
            for layer in layers {
                let new = layer.onnx(graph, &x)?;
                x = graph.concatenated(&[&x, &new], 3);
            }
            if let Some(transition) = transition {
                x = transition.onnx(graph, &x)?;
            }
        }
        let x = self.norm5.onnx(graph, &x, Activation::Relu)?;
        let x = graph.global_average_pool(&x);
        self.head.onnx(graph, &x)
    }
}

/// conv2(relu(norm2(conv1(relu(norm1(x)))))): 1x1, then 3x3 to the maps that are added.
struct Layer {
    norm1: BatchNorm2d,
    conv1: Conv2d,
    norm2: BatchNorm2d,
    conv2: Conv2d,
}

impl Layer {
    fn new(builder: &Builder, maps: usize, growth: usize, rows: [usize; 2]) -> Result<Self> {
        let inside = BOTTLENECK * growth;
        Ok(Self {
            norm1: norm(&builder.pp("norm1"), maps, rows)?,
            conv1: conv(&builder.pp("conv1"), [maps, inside], 1, 1)?,
            norm2: norm(&builder.pp("norm2"), inside, rows)?,
            conv2: conv(&builder.pp("conv2"), [inside, growth], 3, 1)?,
        })
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let y = self.norm1.onnx(graph, x, Activation::Relu)?;
        let y = self.conv1.onnx(graph, &y, [0; 2])?;
        let y = self.norm2.onnx(graph, &y, Activation::Relu)?;
        self.conv2.onnx(graph, &y, [0; 2])
    }
}

impl nn::Block for Layer {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        ops::chain(x, |x| {
            let y = self.norm1.forward(x, None, Activation::Relu, pass)?;
            let y = self.norm2.after(&self.conv1, &y, None, Activation::Relu, pass)?;
            self.conv2.forward(&y, pass)
        })
    }
}

/// Half of the maps, of half the size.
struct Transition {
    norm: BatchNorm2d,
    conv: Conv2d,
}

impl Transition {
    fn new(builder: &Builder, maps: usize, rows: [usize; 2]) -> Result<Self> {
        let norm = norm(&builder.pp("norm"), maps, rows)?;
        Ok(Self { norm, conv: conv(&builder.pp("conv"), [maps, maps / 2], 1, 1)? })
    }

    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = self.norm.forward(x, None, Activation::Relu, pass)?;
        ops::average_pool2d(&self.conv.forward(&x, pass)?, 2, HALVING)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let x = self.norm.onnx(graph, x, Activation::Relu)?;
        let x = self.conv.onnx(graph, &x, [0; 2])?;
        let halving = Sliding::new(&[2; 2], &[2; 2], &[0; 2], &[1; 2]);
        Ok(graph.average_pool(&x, &halving, &[0; 2], true))
    }
}
