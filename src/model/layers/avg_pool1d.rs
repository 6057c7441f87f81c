//! `name = "avg_pool1d"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::window::Slide;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Sliding, Value};
use crate::ops::{self, Lines};

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
        Ok(self.slide().pooled_along(input)?.into())
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
        let Slide { kernel, stride, padding } = self.0;
        let steps = Lines::windows(x.dim(1)?, kernel, stride, padding)?;
        ops::resample(&x.unsqueeze(2)?, steps, Lines::nearest(1, 1)?)?.squeeze(2)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let Slide { kernel, stride, padding } = self.0;
        let sliding = Sliding::new(&[kernel], &[stride], &[padding], &[1]);
        Ok(graph.average_pool(x, &sliding))
    }
}
