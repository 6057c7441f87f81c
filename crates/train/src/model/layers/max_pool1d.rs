//! `name = "max_pool1d"`

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

/// largest value of each window of a sequence, `torch.nn.MaxPool1d`. It always runs on the CPU.
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
    /// steps from one value of the window to the next.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 16_777_216), example = 2)]
    pub dilation: u32,
    /// one more window where the stride leaves a rest, which hangs over the edge, as PyTorch's.
    #[serde(default)]
    #[schemars(example = true)]
    pub ceil_mode: bool,
}

fn one() -> u32 {
    1
}

impl MaxPool1d {
    fn pooling(&self) -> Result<Pooling, Unfit> {
        let side = Shape2::Side;
        let padding = Padding::Zeros(Shape2::Side(self.padding));
        let stride = self.stride.map(side);
        let pooling = Pooling::new(side(self.kernel_size), stride, padding, side(self.dilation))?;
        Ok(pooling.ceil_mode(self.ceil_mode))
    }
}

impl Kind for MaxPool1d {
    const NAME: &'static str = "max_pool1d";
}

impl Layer for MaxPool1d {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        Ok(self.pooling()?.over_steps(input)?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        self.pooling().map_or(String::new(), Pooling::in_words)
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        site.builder().computes_on_cpu();
        let pooling = self.pooling().map_err(|unfit| Error::Msg(unfit.what))?;
        Ok(Node::of(Pool(pooling.in_a_row())))
    }
}

struct Pool(Pooling);

impl Forward for Pool {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let Pooling { kernel, slides, rounding } = self.0;
        ops::max_pool2d_over(&x.unsqueeze(1)?, kernel, slides, rounding)?.squeeze(1)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        // A sequence is an image of one row.
        let row = graph.unsqueezed(x, &[1]);
        let row = self.0.max_pool_onnx(graph, &row)?;
        Ok(graph.squeezed(&row, &[1]))
    }
}
