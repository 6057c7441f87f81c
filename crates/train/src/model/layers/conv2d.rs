//! `name = "conv2d"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::config::values::Shape2;
use crate::model::layers::padding::Padding;
use crate::model::layers::window::{Slide, both, divided, shown};
use crate::model::layers::{
    Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::nn::{self, ForwardContext, Init, RectangularConv};
use crate::onnx::{Graph, Value};
use crate::ops::Slides;

/// convolution of an image, `torch.nn.Conv2d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conv2d {
    /// channels of the output.
    #[schemars(range(min = 1, max = 16_777_216), example = 64)]
    pub out_channels: u32,
    /// rows and columns of the window: one number, or `[rows, columns]`.
    #[schemars(example = 3)]
    pub kernel_size: Shape2,
    /// places from window to window, down and to the right.
    #[serde(default = "once")]
    pub stride: Shape2,
    /// zeros on each side, above and left; "same" keeps the size where `stride` is 1.
    #[serde(default)]
    #[schemars(example = 1)]
    pub padding: Padding,
    /// places from one tap of the window to the next, down and to the right.
    #[serde(default = "once")]
    pub dilation: Shape2,
    /// number of channel groups.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub groups: u32,
    /// whether there is a bias.
    #[serde(default = "yes")]
    #[schemars(example = false)]
    pub bias: bool,
    /// initial weights.
    #[serde(default)]
    #[schemars(example = &"he_fan_out")]
    pub init: Conv2dInit,
}

/// Initial weights of a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Conv2dInit {
    /// PyTorch's default.
    #[default]
    Torch,
    /// Normal with deviation `sqrt(2 / (out_channels kernel_size^2))`, as torchvision's residual
    /// networks.
    HeFanOut,
}

fn one() -> u32 {
    1
}

fn once() -> Shape2 {
    Shape2::Side(1)
}

fn yes() -> bool {
    true
}

impl Conv2d {
    /// PyTorch's defaults.
    pub fn new(out_channels: u32, kernel_size: u32) -> Self {
        Self {
            out_channels,
            kernel_size: Shape2::Side(kernel_size),
            stride: once(),
            padding: Padding::default(),
            dilation: once(),
            groups: 1,
            bias: true,
            init: Conv2dInit::Torch,
        }
    }

    /// Down and to the right: the window with its dilation, and zeros that are added behind only.
    fn slides(&self) -> Result<[(Slide, usize); 2], Unfit> {
        let ([kernels, strides, dilations], paddings) =
            ([self.kernel_size, self.stride, self.dilation].map(both), self.padding.both());
        let axis = |i: usize| {
            let reach = kernels[i].saturating_sub(1).saturating_mul(dilations[i]).saturating_add(1);
            paddings[i].around(reach, strides[i])
        };
        Ok([axis(0)?, axis(1)?])
    }

    fn shape(&self, sizes: &Sizes) -> RectangularConv {
        let padding = self.slides().map_or([0; 2], |slides| slides.map(|(slide, _)| slide.padding));
        RectangularConv {
            inputs: sizes.inputs(),
            outputs: sizes.outputs(),
            kernel: both(self.kernel_size),
            window: Slides { stride: both(self.stride), padding, dilation: both(self.dilation) },
            groups: self.groups as usize,
        }
    }

    /// Weights of one output channel.
    fn weights(&self, sizes: &Sizes) -> usize {
        let [rows, columns] = both(self.kernel_size);
        rows * columns * sizes.inputs() / self.groups as usize
    }
}

impl Kind for Conv2d {
    const NAME: &'static str = "conv2d";
}

impl Layer for Conv2d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let [channels, height, width] = input.image()?;
        divided(self.groups, channels, self.out_channels)?;
        let [(down, below), (right, behind)] = self.slides()?;
        let height = down.along(height + below, input)?;
        let width = right.along(width + behind, input)?;
        Ok(Flow::Image([self.out_channels as usize, height, width]).into())
    }

    /// " 3, stride 2, pad 1", " 3x5, stride 2x1, dilation 2, 4 groups"
    fn details(&self, _: &Sizes) -> String {
        let unless_one = |name: &str, sides: Shape2| match both(sides) {
            [1, 1] => String::new(),
            sides => format!(", {name} {}", shown(sides)),
        };
        let groups =
            if self.groups > 1 { format!(", {} groups", self.groups) } else { String::new() };
        let stride = unless_one("stride", self.stride);
        let dilation = unless_one("dilation", self.dilation);
        format!(
            " {}{stride}{}{dilation}{groups}",
            shown(both(self.kernel_size)),
            self.padding.in_words()
        )
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.outputs() * self.weights(sizes) + sizes.bias(self.bias)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.product(self.weights(sizes))
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let shape = self.shape(&site.sizes());
        let default = Init::torch_default(shape.weight()[1..].iter().product());
        let init = match self.init {
            Conv2dInit::Torch => default,
            Conv2dInit::HeFanOut => Init::he_fan_out(&shape.weight()),
        };
        let bias = self.bias.then_some(default);
        let conv = nn::Conv2d::rectangular(&site.builder(), shape, init, bias)?;
        let behind = self.slides().map_or([0; 2], |slides| slides.map(|(_, behind)| behind));
        if behind == [0; 2] {
            return Ok(Node::Conv2d(conv));
        }
        Ok(Node::of(Padded { conv, behind }))
    }
}

/// A convolution whose padding is not the same on all sides.
struct Padded {
    conv: nn::Conv2d,
    /// Rows of zeros below, and columns on the right.
    behind: [usize; 2],
}

impl Forward for Padded {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        let [below, right] = self.behind;
        let x = x.pad_with_zeros(1, 0, below)?.pad_with_zeros(2, 0, right)?;
        self.conv.forward(&x, pass)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        self.conv.onnx(graph, x, self.behind)
    }
}
