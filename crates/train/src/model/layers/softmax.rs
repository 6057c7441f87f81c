//! `name = "softmax"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};
use crate::ops;

/// e^x / sum(e^x) over the features of a vector or of each step, or over the channels of each
/// pixel. A loss such as `cross_entropy` takes scores from before it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Softmax {}

impl Kind for Softmax {
    const NAME: &'static str = "softmax";
}

impl Layer for Softmax {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        Ok(input.numbers()?.into())
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Self {}))
    }
}

impl Forward for Softmax {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        ops::softmax(x)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.softmax(x))
    }
}
