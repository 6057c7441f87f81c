//! `name = "conv1d"`, `"conv2d"`, `"conv_transpose2d"`

use candle_core::{Error, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::config::values::Shape2;
use crate::model::layers::window::{Padding, Slide, both, shown};
use crate::model::layers::{
    Flow, Forward, InferredLayer, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::nn::{self, ConvShape, ForwardContext, Init, RectangularConv};
use crate::onnx::{Graph, Value};
use crate::ops::{Rounding, SlidingWindow, Window};

fn one() -> u32 {
    1
}

fn once() -> Shape2 {
    Shape2::Side(1)
}

fn yes() -> bool {
    true
}

/// convolution along the steps of a sequence, `torch.nn.Conv1d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conv1d {
    /// channels of the output.
    #[schemars(range(min = 1, max = 16_777_216), example = 64)]
    pub out_channels: u32,
    /// kernel size.
    #[schemars(range(min = 1, max = 16_777_216), example = 3)]
    pub kernel_size: u32,
    /// stride.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub stride: u32,
    /// zeros on each side; "same" keeps the number of steps where `stride` is 1.
    #[serde(default)]
    #[schemars(example = 1)]
    pub padding: Padding,
    /// steps from one tap of the window to the next.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16_777_216), example = 2)]
    pub dilation: u32,
    /// number of channel groups.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub groups: u32,
    /// whether there is a bias.
    #[serde(default = "yes")]
    #[schemars(example = false)]
    pub bias: bool,
}

impl Conv1d {
    /// The dilated window, and the number of zeros that are added at the end only.
    fn slide(&self) -> Result<(Slide, usize), Unfit> {
        let [kernel, dilation] = [self.kernel_size, self.dilation].map(|n| n as usize);
        let reach = kernel.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
        self.padding.along()?.around(reach, self.stride as usize)
    }

    /// Weights of one output channel.
    fn weights(&self, sizes: &Sizes) -> usize {
        self.kernel_size as usize * sizes.inputs() / self.groups as usize
    }
}

impl Kind for Conv1d {
    const NAME: &'static str = "conv1d";
}

impl Layer for Conv1d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let [steps, features] = input.sequence()?;
        check_groups(self.groups, features, self.out_channels)?;
        let (slide, behind) = self.slide()?;
        let steps = slide.along(steps + behind, input, Rounding::Down)?;
        Ok(input.slid(steps, self.out_channels as usize, slide.stride).into())
    }

    fn details(&self, _: &Sizes) -> String {
        let [kernel, stride, dilation] =
            [self.kernel_size, self.stride, self.dilation].map(Shape2::Side);
        in_words(kernel, stride, self.padding, dilation, self.groups)
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.outputs() * self.weights(sizes) + sizes.bias(self.bias)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.product(self.weights(sizes))
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let sizes = site.sizes();
        let (Slide { stride, padding, .. }, behind) =
            self.slide().map_err(|unfit| Error::Msg(unfit.what))?;
        let shape = ConvShape {
            inputs: sizes.inputs(),
            outputs: sizes.outputs(),
            kernel: self.kernel_size as usize,
            window: Window { stride, padding },
            groups: self.groups as usize,
        };
        let new = if self.bias { nn::Conv1d::new } else { nn::Conv1d::without_bias };
        let conv = new(&site.builder(), shape)?.dilated(self.dilation as usize);
        Ok(Node::of(Padded1d { conv, behind }))
    }
}

/// A convolution with more zeros at the end than at the beginning.
struct Padded1d {
    conv: nn::Conv1d,
    behind: usize,
}

impl Forward for Padded1d {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        match self.behind {
            0 => self.conv.forward(x, pass),
            behind => self.conv.forward(&x.pad_with_zeros(1, 0, behind)?, pass),
        }
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        self.conv.onnx(graph, x, self.behind)
    }
}

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

    /// By axis: the dilated window, and the number of zeros that are added at the end only.
    fn slides(&self) -> Result<[(Slide, usize); 2], Unfit> {
        let [kernels, strides, dilations] =
            [self.kernel_size, self.stride, self.dilation].map(both);
        let paddings = self.padding.both();
        let axis = |i: usize| {
            let reach = kernels[i].saturating_sub(1).saturating_mul(dilations[i]).saturating_add(1);
            paddings[i].around(reach, strides[i])
        };
        Ok([axis(0)?, axis(1)?])
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
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let [channels, height, width] = input.image()?;
        check_groups(self.groups, channels, self.out_channels)?;
        let [(down, below), (right, behind)] = self.slides()?;
        let height = down.along(height + below, input, Rounding::Down)?;
        let width = right.along(width + behind, input, Rounding::Down)?;
        Ok(Flow::Image([self.out_channels as usize, height, width]).into())
    }

    fn details(&self, _: &Sizes) -> String {
        in_words(self.kernel_size, self.stride, self.padding, self.dilation, self.groups)
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.outputs() * self.weights(sizes) + sizes.bias(self.bias)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.product(self.weights(sizes))
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let sizes = site.sizes();
        let slides = self.slides().map_err(|unfit| Error::Msg(unfit.what))?;
        let shape = RectangularConv {
            inputs: sizes.inputs(),
            outputs: sizes.outputs(),
            kernel: both(self.kernel_size),
            window: SlidingWindow {
                stride: both(self.stride),
                padding: slides.map(|(slide, _)| slide.padding),
                dilation: both(self.dilation),
            },
            groups: self.groups as usize,
        };
        let default = Init::torch_default(shape.weight()[1..].iter().product());
        let init = match self.init {
            Conv2dInit::Torch => default,
            Conv2dInit::HeFanOut => Init::he_fan_out(&shape.weight()),
        };
        let bias = self.bias.then_some(default);
        let conv = nn::Conv2d::rectangular(&site.builder(), shape, init, bias)?;
        let behind = slides.map(|(_, behind)| behind);
        if behind == [0; 2] {
            return Ok(Node::Conv2d(conv));
        }
        Ok(Node::of(Padded2d { conv, behind }))
    }
}

/// A convolution whose padding is not the same on all sides.
struct Padded2d {
    conv: nn::Conv2d,
    /// Rows of zeros below, and columns on the right.
    behind: [usize; 2],
}

impl Forward for Padded2d {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        let [below, right] = self.behind;
        let x = x.pad_with_zeros(1, 0, below)?.pad_with_zeros(2, 0, right)?;
        self.conv.forward(&x, pass)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        self.conv.onnx(graph, x, self.behind)
    }
}

/// transposed convolution, which makes an image larger, `torch.nn.ConvTranspose2d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConvTranspose2d {
    /// channels of the output.
    #[schemars(range(min = 1, max = 16_777_216), example = 64)]
    pub out_channels: u32,
    /// kernel size (height and width).
    #[schemars(range(min = 1, max = 8192), example = 4)]
    pub kernel_size: u32,
    /// how many times larger the image becomes.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 8192), example = 2)]
    pub stride: u32,
    /// rows and columns that are left out on each side.
    #[serde(default)]
    #[schemars(range(max = 8192), example = 1)]
    pub padding: u32,
    /// rows and columns more below and on the right, fewer than `stride`.
    #[serde(default)]
    #[schemars(range(max = 8192), example = 1)]
    pub output_padding: u32,
    /// number of channel groups.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub groups: u32,
}

impl ConvTranspose2d {
    /// Height or width of the output.
    fn along(&self, side: usize) -> Result<usize, Unfit> {
        let [kernel, stride, padding, behind] =
            [self.kernel_size, self.stride, self.padding, self.output_padding].map(|n| n as usize);
        if behind >= stride {
            let what = format!("must be less than stride = {stride}");
            return Err(Unfit { key: "output_padding", what, help: None });
        }
        let length = (side - 1) * stride + kernel + behind;
        length.checked_sub(2 * padding).filter(|&length| length > 0).ok_or_else(|| {
            let what = format!("leaves nothing of {length} rows or columns");
            Unfit { key: "padding", what, help: None }
        })
    }

    /// Weights of one input channel.
    fn weights(&self) -> usize {
        let kernel = self.kernel_size as usize;
        kernel * kernel * self.out_channels as usize / self.groups as usize
    }
}

impl Kind for ConvTranspose2d {
    const NAME: &'static str = "conv_transpose2d";
}

impl Layer for ConvTranspose2d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let [channels, height, width] = input.image()?;
        check_groups(self.groups, channels, self.out_channels)?;
        let height = self.along(height)?;
        let width = self.along(width)?;
        Ok(Flow::Image([self.out_channels as usize, height, width]).into())
    }

    fn details(&self, _: &Sizes) -> String {
        format!(" {}, stride {}", self.kernel_size, self.stride)
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.inputs() * self.weights() + sizes.outputs()
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        2 * (sizes.input.rows() * sizes.inputs() * self.weights()) as u64
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let sizes = site.sizes();
        let kernel = self.kernel_size as usize;
        let window = Window { stride: self.stride as usize, padding: self.padding as usize };
        let shape = RectangularConv {
            inputs: sizes.inputs(),
            outputs: sizes.outputs(),
            kernel: [kernel; 2],
            window: SlidingWindow::square(window),
            groups: self.groups as usize,
        };
        let behind = [self.output_padding as usize; 2];
        nn::ConvTranspose2d::new(&site.builder(), shape, behind).map(Node::of)
    }
}

impl Forward for nn::ConvTranspose2d {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        nn::ConvTranspose2d::forward(self, x, pass)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        nn::ConvTranspose2d::onnx(self, graph, x)
    }
}

/// Checks that `groups` divides the channels of the input and of the output.
fn check_groups(groups: u32, inputs: usize, outputs: u32) -> Result<(), Unfit> {
    let divides = |n: usize| n.is_multiple_of(groups as usize);
    if divides(inputs) && divides(outputs as usize) {
        return Ok(());
    }
    let what = format!("{groups} do not divide {inputs} channels into {outputs}");
    Err(Unfit { key: "groups", what, help: None })
}

/// " 3, stride 2, pad 1", " 3x5, stride 2x1, dilation 2, 4 groups"
fn in_words(
    kernel: Shape2,
    stride: Shape2,
    padding: Padding,
    dilation: Shape2,
    groups: u32,
) -> String {
    let unless_one = |name: &str, sides: Shape2| match both(sides) {
        [1, 1] => String::new(),
        sides => format!(", {name} {}", shown(sides)),
    };
    let stride = unless_one("stride", stride);
    let dilation = unless_one("dilation", dilation);
    let groups = if groups > 1 { format!(", {groups} groups") } else { String::new() };
    format!(" {}{stride}{}{dilation}{groups}", shown(both(kernel)), padding.in_words())
}
