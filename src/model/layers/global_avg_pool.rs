//! `name = "global_avg_pool"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};
use crate::ops;

/// mean of each channel of an image, or of each feature over the steps of a sequence: a vector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GlobalAvgPool {}

impl Kind for GlobalAvgPool {
    const NAME: &'static str = "global_avg_pool";
}

impl Layer for GlobalAvgPool {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        match input {
            Flow::Image([features, ..]) | Flow::Sequence([_, features]) => {
                Ok(Flow::Vector(features).into())
            }
            _ => Err(input.is_no("an image or a sequence").into()),
        }
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Self {}))
    }
}

impl Forward for GlobalAvgPool {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        match x.rank() {
            3 => ops::global_average_pool(&x.unsqueeze(2)?),
            _ => ops::global_average_pool(x),
        }
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.global_average_pool(x))
    }
}
