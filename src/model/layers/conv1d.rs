//! `name = "conv1d"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::window::{Slide, divided, grouped};
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::{self, ConvShape, ForwardContext};

/// convolution along the steps of a sequence, `torch.nn.Conv1d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Conv1d {
    /// channels of the output.
    #[schemars(range(min = 1, max = 16_777_216), example = 64)]
    pub out_channels: u32,
    /// steps of the window.
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
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

impl Conv1d {
    fn slide(&self) -> Slide {
        Slide::new(self.kernel_size, self.stride, self.padding)
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
        let steps = self.slide().along(steps, input)?;
        Ok(Flow::Sequence([steps, self.out_channels as usize]).into())
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
        let sizes = site.sizes();
        let shape = ConvShape {
            inputs: sizes.inputs(),
            outputs: sizes.outputs(),
            kernel: self.kernel_size as usize,
            window: self.slide().window(),
            groups: self.groups as usize,
        };
        let new = if self.bias { nn::Conv1d::new } else { nn::Conv1d::without_bias };
        new(&site.builder(), shape).map(Node::of)
    }
}

impl Forward for nn::Conv1d {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        nn::Conv1d::forward(self, x, pass)
    }
}
