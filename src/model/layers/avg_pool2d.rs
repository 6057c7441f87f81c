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
use crate::ops;

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
    /// zeros on each side, above and left, included in the mean (`count_include_pad=True`); at most
    /// half of `kernel_size`.
    #[serde(default)]
    #[schemars(example = 1)]
    pub padding: Padding,
}

impl AvgPool2d {
    fn pooling(&self) -> Result<Pooling, Unfit> {
        Pooling::new(self.kernel_size, self.stride, self.padding, Shape2::Side(1))
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
        if !pooling.is_square() {
            site.builder().needs_cpu();
        }
        Ok(Node::of(Pool(pooling)))
    }
}

struct Pool(Pooling);

impl Forward for Pool {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        ops::average_pool2d_over(x, self.0.kernel, self.0.slides)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.average_pool(x, &self.0.onnx()))
    }
}
