//! `name = "avg_pool1d"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::window::{Slide, over_the_edge, rounding};
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Sliding, Value};
use crate::ops::{self, Lines, Means};

/// mean of each window of a sequence, `torch.nn.AvgPool1d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AvgPool1d {
    /// kernel size.
    #[schemars(range(min = 1, max = 16_777_216), example = 3)]
    pub kernel_size: u32,
    /// stride. Default: `kernel_size`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16_777_216), example = 2)]
    pub stride: Option<u32>,
    /// zeros on each side, at most half of `kernel_size`.
    #[serde(default)]
    #[schemars(range(max = 16_777_216), example = 1)]
    pub padding: u32,
    /// one more window where the stride leaves a rest, which hangs over the edge, as PyTorch's.
    #[serde(default)]
    #[schemars(example = true)]
    pub ceil_mode: bool,
    /// padding counts as zeros in the mean; else only what is there counts.
    #[serde(default = "yes")]
    #[schemars(example = false)]
    pub count_include_pad: bool,
}

fn yes() -> bool {
    true
}

impl AvgPool1d {
    fn slide(&self) -> Slide {
        Slide::new(self.kernel_size, self.stride.unwrap_or(self.kernel_size), self.padding)
    }
}

impl Kind for AvgPool1d {
    const NAME: &'static str = "avg_pool1d";
}

impl Layer for AvgPool1d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        Ok(self.slide().pooled_along(input, rounding(self.ceil_mode))?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        let ceil = if self.ceil_mode { ", ceil" } else { "" };
        format!("{}{ceil}", self.slide().in_words())
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        let Slide { kernel, stride, padding } = self.slide();
        let rounding = rounding(self.ceil_mode);
        let count_include_pad = self.count_include_pad;
        Ok(Node::of(Pool(Means { kernel, stride, padding, rounding, count_include_pad })))
    }
}

struct Pool(Means);

impl Forward for Pool {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let steps = Lines::means(x.dim(1)?, self.0)?;
        ops::resample(&x.unsqueeze(2)?, steps, Lines::nearest(1, 1)?)?.squeeze(2)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let Means { kernel, stride, padding, count_include_pad, .. } = self.0;
        let sliding = Sliding::new(&[kernel], &[stride], &[padding], &[1]);
        let over = over_the_edge(x, 1, self.0)?;
        Ok(graph.average_pool(x, &sliding, &[over], count_include_pad))
    }
}
