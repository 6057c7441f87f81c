//! `name = "flatten"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};
use crate::ops;

/// image or sequence to vector, all values in PyTorch's order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Flatten {}

impl Kind for Flatten {
    const NAME: &'static str = "flatten";
}

impl Layer for Flatten {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let features = input.numbers()?.features().unwrap_or(0);
        Ok(Flow::Vector(features * input.rows()).into())
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Self {}))
    }
}

impl Forward for Flatten {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        match x.rank() {
            4 => ops::nhwc_to_nchw(x)?.flatten_from(1),
            _ => x.flatten_from(1),
        }
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let x = if x.rank() == 4 { graph.planes(x) } else { x.clone() };
        Ok(graph.flattened(&x, 1))
    }
}
