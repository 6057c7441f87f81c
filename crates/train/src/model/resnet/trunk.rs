//! The convolutions of a residual network: images -> feature maps, channels last.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use super::{Block, Shortcut, Stem, Variant};
use crate::model::architecture::image_shape;
use crate::nn::{self, BatchNorm2d, Builder, Conv2d, ConvShape, ForwardContext, GroupNorm, Init};
use crate::onnx::{Graph, Sliding, Value};
use crate::ops::{self, Activation, Window};

/// Pooling after the stem for large images.
const POOLING: Window = Window { stride: 2, padding: 1 };
/// Channels of a group of group norms.
const GROUP: usize = 16;

/// Options of the convolutions of a residual network.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    stem: Stem,
    /// Channels of the first stage; each further stage has twice as many.
    width: usize,
    variant: Variant,
    shortcut: Shortcut,
    style: Style,
    /// Initial scale of the last norm of a block.
    last_gamma: f64,
}

/// Kind of the norms, and names of the parts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Batch norms; `conv1`, `bn1`, `layer1` ...
    Torchvision,
    /// Group norms; parts named by their index among torchvision's children: `0`, `1`, `4` ...
    Grouped,
}

impl Style {
    /// Names of the first convolution, of its norm, and of a stage, from 0.
    fn names(self, stage: usize) -> [String; 3] {
        match self {
            Self::Torchvision => ["conv1".into(), "bn1".into(), format!("layer{}", stage + 1)],
            Self::Grouped => ["0".into(), "1".into(), format!("{}", stage + 4)],
        }
    }
}

impl Shape {
    pub(super) fn new(variant: Variant, stem: Stem, shortcut: Shortcut, style: Style) -> Self {
        let (stem, width) = if variant.is_small { (Stem::Cifar, 16) } else { (stem, 64) };
        Self { stem, width, variant, shortcut, style, last_gamma: 1.0 }
    }

    pub(super) fn with_last_gamma(self, last_gamma: f64) -> Self {
        Self { last_gamma, ..self }
    }
}

/// A convolution that keeps the size, but for its stride.
#[derive(Clone, Copy)]
struct Layer {
    outputs: usize,
    kernel: usize,
    stride: usize,
    groups: usize,
}

impl Layer {
    fn new(outputs: usize, kernel: usize, stride: usize) -> Self {
        Self { outputs, kernel, stride, groups: 1 }
    }

    fn of(self, inputs: usize) -> ConvShape {
        let Self { outputs, kernel, stride, groups } = self;
        ConvShape {
            inputs,
            outputs,
            kernel,
            window: Window { stride, padding: kernel / 2 },
            groups,
        }
    }
}

impl Shape {
    /// The convolutions of a block of a stage of `width` channels.
    fn convolutions(self, width: usize, stride: usize) -> Vec<Layer> {
        let Variant { block, groups, width_per_group, .. } = self.variant;
        match block {
            Block::Basic => vec![Layer::new(width, 3, stride), Layer::new(width, 3, 1)],
            Block::Bottleneck => {
                let inner = width * width_per_group / 64 * groups;
                let middle = Layer { groups, ..Layer::new(inner, 3, stride) };
                vec![Layer::new(inner, 1, 1), middle, Layer::new(4 * width, 1, 1)]
            }
        }
    }
}

/// Everything before the pooling.
pub(super) struct Trunk {
    stem: Stem,
    first: ConvNorm,
    blocks: Vec<Arc<Residual>>,
}

impl Trunk {
    /// Registers the trunk for images (channels, height, width); also returns (height, width,
    /// channels) of its maps.
    pub(super) fn new(
        shape: Shape,
        image: &[usize],
        builder: &Builder,
    ) -> Result<(Self, [usize; 3])> {
        let [channels, height, width] = image_shape(image)?;
        let (kernel, stride) = match shape.stem {
            Stem::Imagenet => (7, 2),
            Stem::Cifar => (3, 1),
        };
        let stem = Layer::new(shape.width, kernel, stride).of(channels);
        let mut size = strided([height, width], stride);
        let [conv, norm, _] = shape.style.names(0).map(|name| builder.pp(name));
        let first = ConvNorm::new(&conv, &norm, stem, size, shape.style, 1.0)?;
        if shape.stem == Stem::Imagenet {
            size = strided(size, POOLING.stride);
        }
        let mut blocks = Vec::new();
        let mut inputs = shape.width;
        for (stage, &count) in shape.variant.blocks.iter().enumerate() {
            let [_, _, name] = shape.style.names(stage);
            let builder = builder.pp(name);
            let width = shape.width << stage;
            for i in 0..count {
                let stride = if i == 0 && stage > 0 { 2 } else { 1 };
                let layers = shape.convolutions(width, stride);
                let block = Residual::new(&builder.pp(i), inputs, &layers, size, shape)?;
                blocks.push(Arc::new(block));
                size = strided(size, stride);
                inputs = width * shape.variant.block.expansion();
            }
        }
        Ok((Self { stem: shape.stem, first, blocks }, [size[0], size[1], inputs]))
    }

    /// (n, channels, height, width) -> maps (n, height, width, channels).
    pub(super) fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = ops::nchw_to_nhwc(input)?;
        let mut x = self.first.forward(&x, None, Activation::Relu, pass)?;
        if self.stem == Stem::Imagenet {
            x = ops::max_pool2d(&x, 3, POOLING)?;
        }
        for block in &self.blocks {
            x = nn::run_block(block, &x, pass)?;
        }
        Ok(x)
    }

    /// [`Trunk::forward`] in a graph of ONNX.
    pub(super) fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = graph.images(input);
        let mut x = self.first.onnx(graph, &x, Activation::Relu)?;
        if self.stem == Stem::Imagenet {
            let Window { stride, padding } = POOLING;
            let sliding = Sliding::new(&[3; 2], &[stride; 2], &[padding; 2], &[1; 2]);
            x = graph.max_pool(&x, &sliding);
        }
        self.blocks.iter().try_fold(x, |x, block| block.onnx(graph, &x))
    }
}

/// relu(layers(x) + shortcut(x)).
struct Residual {
    layers: Vec<ConvNorm>,
    branch: ShortcutBranch,
}

enum ShortcutBranch {
    Input,
    Projected(ConvNorm),
    /// Stride and channels.
    Padded(usize, usize),
}

impl Residual {
    fn new(
        builder: &Builder,
        inputs: usize,
        convolutions: &[Layer],
        mut size: [usize; 2],
        Shape { last_gamma, shortcut, style, .. }: Shape,
    ) -> Result<Self> {
        let mut layers = Vec::new();
        let mut channels = inputs;
        for (i, &layer) in convolutions.iter().enumerate() {
            let gamma = if i + 1 == convolutions.len() { last_gamma } else { 1.0 };
            let names = [format!("conv{}", i + 1), format!("bn{}", i + 1)];
            let [conv_builder, norm_builder] = names.map(|name| builder.pp(name));
            size = strided(size, layer.stride);
            let shape = layer.of(channels);
            channels = layer.outputs;
            let layer = ConvNorm::new(&conv_builder, &norm_builder, shape, size, style, gamma)?;
            layers.push(layer);
        }
        let stride = convolutions.iter().map(|layer| layer.stride).product();
        let branch = match shortcut {
            _ if stride == 1 && inputs == channels => ShortcutBranch::Input,
            Shortcut::Padding => ShortcutBranch::Padded(stride, channels),
            Shortcut::Projection => {
                let builder = builder.pp("downsample");
                let shape = Layer::new(channels, 1, stride).of(inputs);
                let layer = ConvNorm::new(&builder.pp(0), &builder.pp(1), shape, size, style, 1.0)?;
                ShortcutBranch::Projected(layer)
            }
        };
        Ok(Self { layers, branch })
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let shortcut = match &self.branch {
            ShortcutBranch::Input => x.clone(),
            ShortcutBranch::Projected(layer) => layer.onnx(graph, x, Activation::Identity)?,
            &ShortcutBranch::Padded(stride, channels) => padded_onnx(graph, x, stride, channels),
        };
        let mut y = x.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            let is_last = i + 1 == self.layers.len();
            let activation = if is_last { Activation::Identity } else { Activation::Relu };
            y = layer.onnx(graph, &y, activation)?;
        }
        let sum = graph.add(&y, &shortcut);
        Ok(graph.unary("Relu", &sum, &[]))
    }
}

/// [`ops::padded_shortcut`] in a graph of ONNX.
fn padded_onnx(graph: &mut Graph, x: &Value, stride: usize, channels: usize) -> Value {
    let kept = [1, 2].into_iter().fold(x.clone(), |x, axis| {
        let side = x.dims()[axis].unwrap_or_default();
        graph.stepped(&x, axis, [0, side], stride)
    });
    let more = channels - x.features();
    graph.padded(&kept, 3, more / 2, more - more / 2)
}

impl nn::Block for Residual {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let shortcut = match &self.branch {
            ShortcutBranch::Input => x.clone(),
            ShortcutBranch::Projected(layer) => {
                layer.forward(x, None, Activation::Identity, pass)?
            }
            &ShortcutBranch::Padded(stride, channels) => ops::padded_shortcut(x, stride, channels)?,
        };
        let mut y = x.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            let residual = (i + 1 == self.layers.len()).then_some(&shortcut);
            y = layer.forward(&y, residual, Activation::Relu, pass)?;
        }
        Ok(y)
    }
}

/// Convolution without bias, then a norm.
struct ConvNorm {
    conv: Conv2d,
    norm: Norm,
}

enum Norm {
    Batch(BatchNorm2d),
    Groups(GroupNorm),
}

impl ConvNorm {
    /// `size` is height and width of the output.
    fn new(
        conv: &Builder,
        norm: &Builder,
        shape: ConvShape,
        size: [usize; 2],
        style: Style,
        gamma: f64,
    ) -> Result<Self> {
        let init = Init::he_fan_out(&shape.weight());
        let outputs = shape.outputs;
        Ok(Self {
            conv: Conv2d::without_bias(conv, shape, init)?,
            norm: match style {
                Style::Torchvision => {
                    Norm::Batch(BatchNorm2d::new(norm, outputs, size.iter().product(), gamma)?)
                }
                Style::Grouped => Norm::Groups(GroupNorm::new(norm, outputs / GROUP, outputs)?),
            },
        })
    }

    fn onnx(&self, graph: &mut Graph, x: &Value, activation: Activation) -> Result<Value> {
        let y = self.conv.onnx(graph, x, [0; 2])?;
        match (&self.norm, activation) {
            (Norm::Batch(norm), activation) => norm.onnx(graph, &y, activation),
            (Norm::Groups(norm), Activation::Identity) => norm.onnx(graph, &y),
            (Norm::Groups(norm), Activation::Relu) => {
                let y = norm.onnx(graph, &y)?;
                Ok(graph.unary("Relu", &y, &[]))
            }
        }
    }

    fn forward(
        &self,
        x: &Tensor,
        residual: Option<&Tensor>,
        activation: Activation,
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let norm = match &self.norm {
            Norm::Batch(norm) => return norm.after(&self.conv, x, residual, activation, pass),
            Norm::Groups(norm) => norm,
        };
        let y = norm.forward(&self.conv.forward(x, pass)?)?;
        let y = residual.map_or(Ok(y.clone()), |residual| ops::add(&y, residual))?;
        match activation {
            Activation::Identity => Ok(y),
            Activation::Relu => ops::relu(&y),
        }
    }
}

/// Height and width after a [`Layer`] or a pooling.
fn strided(size: [usize; 2], stride: usize) -> [usize; 2] {
    size.map(|length| length.div_ceil(stride))
}

/// torchvision's network up to its last feature maps, with a group norm of 16 channels a group in
/// place of each batch norm: averages of weights (EMA) and statistics of a batch do not go together
/// (Chi et al., 2023, section 3.2).
///
/// Keys are those of `nn.Sequential(*resnet.children())`: `0`, `1`, `4.0.conv1` ...
pub struct Backbone(Trunk);

impl Backbone {
    /// Registers it for images (channels, height, width); also returns (height, width, channels) of
    /// its maps.
    pub fn new(
        variant: Variant,
        image: [usize; 3],
        builder: &Builder,
    ) -> Result<(Self, [usize; 3])> {
        let shape = Shape::new(variant, Stem::Imagenet, Shortcut::Projection, Style::Grouped);
        let (trunk, maps) = Trunk::new(shape, &image, builder)?;
        Ok((Self(trunk), maps))
    }

    /// (n, channels, height, width) -> (n, height, width, channels).
    pub fn forward(&self, images: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        ops::chain(images, |images| self.0.forward(images, pass))
    }

    /// [`Backbone::forward`] in a graph of ONNX.
    pub fn onnx(&self, graph: &mut Graph, images: &Value) -> Result<Value> {
        self.0.onnx(graph, images)
    }
}
