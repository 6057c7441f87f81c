//! `name = "max_pool1d"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::window::Slide;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::ForwardContext;
use crate::ops;

/// largest value of each window of a sequence, `torch.nn.MaxPool1d`. On CPUs only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaxPool1d {
    /// kernel size.
    #[schemars(range(min = 1, max = 16_777_216), example = 3)]
    pub kernel_size: u32,
    /// stride. Default: `kernel_size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16_777_216), example = 2)]
    pub stride: Option<u32>,
    /// padding on each side, which is never the maximum; at most half of `kernel_size`.
    #[serde(default)]
    #[schemars(range(max = 16_777_216), example = 1)]
    pub padding: u32,
}

impl MaxPool1d {
    fn slide(&self) -> Slide {
        Slide::new(self.kernel_size, self.stride.unwrap_or(self.kernel_size), self.padding)
    }
}

impl Kind for MaxPool1d {
    const NAME: &'static str = "max_pool1d";
}

impl Layer for MaxPool1d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        Ok(self.slide().pooled_along(input)?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        self.slide().in_words()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        site.builder().needs_cpu();
        Ok(Node::of(Pool(self.slide())))
    }
}

struct Pool(Slide);

impl Forward for Pool {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        ops::max_pool1d(x, self.0.kernel, self.0.window())
    }
}
