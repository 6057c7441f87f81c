//! `name = "conv1d"`

use candle_core::{Error, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::padding::Padding;
use crate::model::layers::window::{Slide, divided};
use crate::model::layers::{
    Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::nn::{self, ConvShape, ForwardContext};
use crate::onnx::{Graph, Value};
use crate::ops::Window;

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

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

impl Conv1d {
    /// The window with its dilation, and zeros that are added behind only.
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
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let [steps, features] = input.sequence()?;
        divided(self.groups, features, self.out_channels)?;
        let (slide, behind) = self.slide()?;
        let steps = slide.along(steps + behind, input)?;
        Ok(input.slid(steps, self.out_channels as usize, slide.stride).into())
    }

    fn details(&self, _: &Sizes) -> String {
        let unless_one = |name: &str, n: u32| match n {
            1 => String::new(),
            n => format!(", {name} {n}"),
        };
        let stride = unless_one("stride", self.stride);
        let dilation = unless_one("dilation", self.dilation);
        let groups =
            if self.groups > 1 { format!(", {} groups", self.groups) } else { String::new() };
        format!(" {}{stride}{}{dilation}{groups}", self.kernel_size, self.padding.in_words())
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
        Ok(Node::of(Padded { conv, behind }))
    }
}

/// A convolution with more zeros at the end than at the beginning.
struct Padded {
    conv: nn::Conv1d,
    behind: usize,
}

impl Forward for Padded {
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
