//! `name = "avg_pool2d"`

use candle_core::{Error, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::config::values::Shape2;
use crate::model::layers::padding::Padding;
use crate::model::layers::window::Pooling;
use crate::model::layers::{
    Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};
use crate::ops::{self, Lines, Rounding};

/// mean of each window of an image, `torch.nn.AvgPool2d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AvgPool2d {
    /// rows and columns of the window: one number, or `[rows, columns]`.
    #[schemars(example = 3)]
    pub kernel_size: Shape2,
    /// places from window to window, down and to the right. Default: `kernel_size`.
    #[serde(default)]
    #[schemars(example = 2)]
    pub stride: Option<Shape2>,
    /// zeros on each side, above and left; at most half of `kernel_size`.
    #[serde(default)]
    #[schemars(example = 1)]
    pub padding: Padding,
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

impl AvgPool2d {
    fn pooling(&self) -> Result<Pooling, Unfit> {
        let once = Shape2::Side(1);
        let pooling = Pooling::new(self.kernel_size, self.stride, self.padding, once)?;
        Ok(pooling.ceil_mode(self.ceil_mode))
    }
}

impl Kind for AvgPool2d {
    const NAME: &'static str = "avg_pool2d";
}

impl Layer for AvgPool2d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        Ok(self.pooling()?.over(input)?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        self.pooling().map_or(String::new(), Pooling::in_words)
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let pooling = self.pooling().map_err(|unfit| Error::Msg(unfit.what))?;
        let pool = Pool { pooling, count_include_pad: self.count_include_pad };
        if !pooling.is_square() && !pool.is_by_lines() {
            site.builder().computes_on_cpu();
        }
        Ok(Node::of(pool))
    }
}

struct Pool {
    pooling: Pooling,
    count_include_pad: bool,
}

impl Pool {
    /// Whether windows have means of unequal numbers of pixels, row by row and column by column.
    fn is_by_lines(&self) -> bool {
        self.pooling.rounding == Rounding::Up || !self.count_include_pad
    }
}

impl Forward for Pool {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let pooling = self.pooling;
        if !self.is_by_lines() {
            return ops::average_pool2d_over(x, pooling.kernel, pooling.slides);
        }
        let lines = |axis: usize| {
            Lines::means(x.dim(1 + axis)?, pooling.means(axis, self.count_include_pad))
        };
        ops::resample(x, lines(0)?, lines(1)?)
    }

    fn takes_half(&self) -> bool {
        true
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let over = self.pooling.over_the_edge(x)?;
        Ok(graph.average_pool(x, &self.pooling.onnx(), &over, self.count_include_pad))
    }
}
