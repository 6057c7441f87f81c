//! VGG (Simonyan and Zisserman, 2014, <https://arxiv.org/abs/1409.1556>), with torchvision's keys
//! and initialisation.
//!
//! Keys: `features.{i}` of convolutions (and their norms with `_bn`), counted with activations and
//! poolings; `classifier.{0,3,6}`. timm's names load as well.

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::image_shape;
use super::layers::{AdaptiveAvgPool2d, Forward};
use super::names::Library;
use super::{Architecture, Head, Model, Models, TorchvisionModel};
use crate::config::kind::Kind;
use crate::nn::{BatchNorm2d, Builder, Conv2d, ConvShape, Dropout, ForwardContext, Init, Linear};
use crate::onnx::{Graph, Sliding, Value};
use crate::ops::{self, Activation, LinearActivation, Window};
use crate::plan::{Modality, ModelPlan};

const TIMM: &str = Library::Timm.words();
/// Rows and columns of the maps that the classifier reads.
const SIDE: usize = 7;
const HIDDEN: usize = 4096;
const POOLING: Window = Window { stride: 2, padding: 0 };

/// torchvision's VGG of 11 layers, 133 million parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VggConfig {
    /// dropout after each of the two hidden layers of the classifier.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub dropout: f64,
    /// Size, which follows from the name.
    #[serde(skip)]
    pub size: VggSize,
}

/// Size of a VGG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VggSize {
    pub name: &'static str,
    /// Convolutions of each stage.
    convolutions: [usize; 5],
    /// True if a batch norm follows each convolution.
    has_norms: bool,
}

/// Channels of each stage.
const WIDTHS: [usize; 5] = [64, 128, 256, 512, 512];

const SIZES: [VggSize; 8] = [
    VggSize { name: "vgg11", convolutions: [1, 1, 2, 2, 2], has_norms: false },
    VggSize { name: "vgg11_bn", convolutions: [1, 1, 2, 2, 2], has_norms: true },
    VggSize { name: "vgg13", convolutions: [2, 2, 2, 2, 2], has_norms: false },
    VggSize { name: "vgg13_bn", convolutions: [2, 2, 2, 2, 2], has_norms: true },
    VggSize { name: "vgg16", convolutions: [2, 2, 3, 3, 3], has_norms: false },
    VggSize { name: "vgg16_bn", convolutions: [2, 2, 3, 3, 3], has_norms: true },
    VggSize { name: "vgg19", convolutions: [2, 2, 4, 4, 4], has_norms: false },
    VggSize { name: "vgg19_bn", convolutions: [2, 2, 4, 4, 4], has_norms: true },
];

impl Default for VggSize {
    fn default() -> Self {
        SIZES[0]
    }
}

impl Default for VggConfig {
    fn default() -> Self {
        Self { dropout: 0.5, size: VggSize::default() }
    }
}

impl Kind for VggConfig {
    const NAME: &'static str = "vgg11";

    fn name(&self) -> &'static str {
        self.size.name
    }
}

/// Adds all sizes.
pub(super) fn register(models: &mut Models) {
    models.add::<VggConfig>();
    for size in &SIZES[1..] {
        let layers = size.convolutions.iter().sum::<usize>() + 3;
        let norms = if size.has_norms { ", with batch norms" } else { "" };
        let about = format!("torchvision's VGG of {layers} layers{norms}.");
        models.add_variant(size.name, &about, move |net: &mut VggConfig| net.size = *size);
    }
}

impl Architecture for VggConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let [channels, height, width] = image_shape(&plan.input)?;
        if height.min(width) < 32 {
            bail!("images have at least 32x32 pixels, not {height}x{width}");
        }
        let features = builder.pp("features");
        let mut size = [height, width];
        let mut inputs = channels;
        let mut index = 0;
        let mut stages = Vec::new();
        for (&n, &outputs) in self.size.convolutions.iter().zip(&WIDTHS) {
            let mut layers = Vec::new();
            for _ in 0..n {
                let shape = ConvShape {
                    inputs,
                    outputs,
                    kernel: 3,
                    window: Window { stride: 1, padding: 1 },
                    groups: 1,
                };
                let init = Init::he_fan_out(&shape.weight());
                let zeros = Init::Constant(0.0);
                let conv = Conv2d::with_inits(&features.pp(index), shape, init, zeros)?;
                let rows = size.iter().product();
                let norm = self
                    .size
                    .has_norms
                    .then(|| BatchNorm2d::new(&features.pp(index + 1), outputs, rows, 1.0))
                    .transpose()?;
                index += if self.size.has_norms { 3 } else { 2 };
                layers.push(Layer { conv, norm });
                inputs = outputs;
            }
            // A pooling.
            index += 1;
            size = size.map(|length| length / 2);
            stages.push(layers);
        }
        let classifier = builder.pp("classifier");
        register_timm_names(&classifier);
        let linear = |index: usize, inputs, outputs| {
            let (weights, zeros) = (Init::Normal(0.01), Some(Init::Constant(0.0)));
            Linear::with_init(&classifier.pp(index), inputs, outputs, weights, zeros)
        };
        Ok(Box::new(Vgg {
            stages,
            size,
            hidden: [linear(0, SIDE * SIDE * inputs, HIDDEN)?, linear(3, HIDDEN, HIDDEN)?],
            dropouts: [2, 5].map(|index: usize| Dropout::new(&classifier.pp(index), self.dropout)),
            head: linear(6, HIDDEN, plan.outputs)?,
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Images]
    }

    fn head(&self) -> Head {
        Head::Keys(&["classifier.6."])
    }

    fn has_blocks(&self) -> bool {
        false
    }

    fn torchvision(&self) -> Option<TorchvisionModel> {
        Some(TorchvisionModel { name: self.size.name, timm: Some(self.size.name) })
    }
}

/// Registers timm's names, whose hidden layers are convolutions of the same numbers.
fn register_timm_names(classifier: &Builder) {
    let shapes = [[HIDDEN, WIDTHS[4], SIDE, SIDE], [HIDDEN, HIDDEN, 1, 1]];
    for ((own, other), shape) in [("0", "fc1"), ("3", "fc2")].into_iter().zip(shapes) {
        let name = format!("pre_logits.{other}");
        classifier.also_called(TIMM, own, name.clone());
        let weight = format!("{own}.weight");
        classifier.also_called_with_shape(TIMM, &weight, format!("{name}.weight"), &shape);
    }
    classifier.also_called(TIMM, "6", "head.fc");
}

/// A convolution, perhaps a norm, and a rectifier.
struct Layer {
    conv: Conv2d,
    norm: Option<BatchNorm2d>,
}

struct Vgg {
    /// Layers between two poolings.
    stages: Vec<Vec<Layer>>,
    /// Rows and columns of the last maps.
    size: [usize; 2],
    hidden: [Linear; 2],
    dropouts: [Dropout; 2],
    head: Linear,
}

impl Vgg {
    /// What makes 7 x 7 maps of the last ones, if they are not.
    fn pooling(&self) -> Option<AdaptiveAvgPool2d> {
        let output_size = [SIDE as u32; 2];
        (self.size != [SIDE; 2]).then_some(AdaptiveAvgPool2d { output_size })
    }
}

impl Model for Vgg {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let maps = ops::chain(input, |x| {
            let mut x = ops::nchw_to_nhwc(x)?;
            for layers in &self.stages {
                for Layer { conv, norm } in layers {
                    x = match norm {
                        Some(norm) => norm.after(conv, &x, None, Activation::Relu, pass)?,
                        None => ops::relu(&conv.autocast(&x, pass)?)?,
                    };
                }
                x = ops::max_pool2d(&x, 2, POOLING)?;
            }
            if let Some(pooling) = self.pooling() {
                x = pooling.forward(&x, pass)?;
            }
            ops::nhwc_to_nchw(&x)
        })?;
        ops::chain(&maps.flatten_from(1)?, |x| {
            let mut x = x.clone();
            for (layer, dropout) in self.hidden.iter().zip(&self.dropouts) {
                x = dropout.forward(&ops::relu(&layer.forward(&x, pass)?)?, pass)?;
            }
            self.head.forward(&x, pass)
        })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let mut x = graph.images(input);
        for layers in &self.stages {
            for Layer { conv, norm } in layers {
                x = conv.onnx(graph, &x, [0; 2])?;
                x = match norm {
                    Some(norm) => norm.onnx(graph, &x, Activation::Relu)?,
                    None => graph.unary("Relu", &x, &[]),
                };
            }
            x = graph.max_pool(&x, &Sliding::new(&[2; 2], &[2; 2], &[0; 2], &[1; 2]));
        }
        if let Some(pooling) = self.pooling() {
            x = pooling.onnx(graph, &x)?;
        }
        let x = graph.planes(&x);
        let mut x = graph.flattened(&x, 1);
        for layer in &self.hidden {
            x = layer.onnx_activated(graph, &x, LinearActivation::Relu)?;
        }
        self.head.onnx(graph, &x)
    }
}
