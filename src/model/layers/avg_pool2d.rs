//! `name = "avg_pool2d"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::window::Slide;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::ForwardContext;
use crate::ops;

/// mean of each window of an image, `torch.nn.AvgPool2d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AvgPool2d {
    /// kernel size (height and width).
    #[schemars(range(min = 1, max = 16_777_216), example = 3)]
    pub kernel_size: u32,
    /// stride. Default: `kernel_size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16_777_216), example = 2)]
    pub stride: Option<u32>,
    /// zero padding on each side, included in the mean (`count_include_pad=True`); at most half of
    /// `kernel_size`.
    #[serde(default)]
    #[schemars(range(max = 16_777_216), example = 1)]
    pub padding: u32,
}

impl AvgPool2d {
    fn slide(&self) -> Slide {
        Slide::new(self.kernel_size, self.stride.unwrap_or(self.kernel_size), self.padding)
    }
}

impl Kind for AvgPool2d {
    const NAME: &'static str = "avg_pool2d";
}

impl Layer for AvgPool2d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        Ok(self.slide().pooled(input)?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        self.slide().in_words()
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Pool(self.slide())))
    }
}

struct Pool(Slide);

impl Forward for Pool {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        ops::average_pool2d(x, self.0.kernel, self.0.window())
    }
}
