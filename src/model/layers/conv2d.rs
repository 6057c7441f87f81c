//! `name = "conv2d"`

use candle_core::Result as CandleResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::window::{Slide, divided, grouped};
use crate::model::layers::{Decided, Flow, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::{self, ConvShape, Init};

/// convolution of an image with a square kernel, `torch.nn.Conv2d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conv2d {
    /// channels of the output.
    #[schemars(range(min = 1, max = 16_777_216), example = 64)]
    pub out_channels: u32,
    /// rows and columns of the window.
    #[schemars(range(min = 1, max = 16_777_216), example = 3)]
    pub kernel_size: u32,
    /// places from window to window.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub stride: u32,
    /// zeros on each side.
    #[serde(default)]
    #[schemars(range(max = 16_777_216), example = 1)]
    pub padding: u32,
    /// groups of channels that do not see each other.
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
    /// Normal with deviation `sqrt(2 / (out_channels kernel_size^2))`, as torchvision's residual networks.
    HeFanOut,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

impl Conv2d {
    /// PyTorch's defaults.
    pub fn new(out_channels: u32, kernel_size: u32) -> Self {
        let (stride, padding, groups) = (1, 0, 1);
        let init = Conv2dInit::Torch;
        Self { out_channels, kernel_size, stride, padding, groups, bias: true, init }
    }

    fn slide(&self) -> Slide {
        Slide::new(self.kernel_size, self.stride, self.padding)
    }

    fn shape(&self, sizes: &Sizes) -> ConvShape {
        ConvShape {
            inputs: sizes.inputs(),
            outputs: sizes.outputs(),
            kernel: self.kernel_size as usize,
            window: self.slide().window(),
            groups: self.groups as usize,
        }
    }

    /// Weights of one output channel.
    fn weights(&self, sizes: &Sizes) -> usize {
        let kernel = self.kernel_size as usize;
        kernel * kernel * sizes.inputs() / self.groups as usize
    }
}

impl Kind for Conv2d {
    const NAME: &'static str = "conv2d";
}

impl Layer for Conv2d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let [channels, ..] = input.image()?;
        divided(self.groups, channels, self.out_channels)?;
        let [_, height, width] = self.slide().over(input)?;
        Ok(Flow::Image([self.out_channels as usize, height, width]).into())
    }

    fn details(&self, _: &Sizes) -> String {
        grouped(self.slide(), self.groups)
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.outputs() * self.weights(sizes) + sizes.bias(self.bias)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.product(self.weights(sizes))
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let shape = self.shape(&site.sizes());
        let init = match self.init {
            Conv2dInit::Torch => Init::torch_default(shape.weight()[1..].iter().product()),
            Conv2dInit::HeFanOut => Init::he_fan_out(&shape.weight()),
        };
        let new = if self.bias { nn::Conv2d::with_init } else { nn::Conv2d::without_bias };
        new(&site.builder(), shape, init).map(Node::Conv2d)
    }
}
