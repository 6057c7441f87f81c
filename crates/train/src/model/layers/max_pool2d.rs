//! `name = "max_pool2d"`

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

/// largest value of each window of an image, `torch.nn.MaxPool2d`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaxPool2d {
    /// rows and columns of the window: one number, or `[rows, columns]`.
    #[schemars(example = 3)]
    pub kernel_size: Shape2,
    /// places from window to window, down and to the right. Default: `kernel_size`.
    #[serde(default)]
    #[schemars(example = 2)]
    pub stride: Option<Shape2>,
    /// pixels on each side, above and left, which are never the maximum; at most half of
    /// `kernel_size`.
    #[serde(default)]
    #[schemars(example = 1)]
    pub padding: Padding,
    /// places from one pixel of the window to the next, down and to the right.
    #[serde(default = "once")]
    pub dilation: Shape2,
    /// one more window where the stride leaves a rest, which hangs over the edge, as PyTorch's.
    /// GPUs leave it to the CPU.
    #[serde(default)]
    #[schemars(example = true)]
    pub ceil_mode: bool,
}

fn once() -> Shape2 {
    Shape2::Side(1)
}

impl MaxPool2d {
    fn pooling(&self) -> Result<Pooling, Unfit> {
        let pooling = Pooling::new(self.kernel_size, self.stride, self.padding, self.dilation)?;
        Ok(pooling.ceil_mode(self.ceil_mode))
    }
}

impl Kind for MaxPool2d {
    const NAME: &'static str = "max_pool2d";
}

impl Layer for MaxPool2d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        Ok(self.pooling()?.over(input)?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        self.pooling().map_or(String::new(), Pooling::in_words)
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let pooling = self.pooling().map_err(|unfit| Error::Msg(unfit.what))?;
        if !pooling.is_square() {
            site.builder().computes_on_cpu();
        }
        Ok(Node::of(Pool(pooling)))
    }
}

struct Pool(Pooling);

impl Forward for Pool {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let Pooling { kernel, slides, rounding } = self.0;
        ops::max_pool2d_over(x, kernel, slides, rounding)
    }

    fn takes_half(&self) -> bool {
        true
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        self.0.max_pool_onnx(graph, x)
    }
}
