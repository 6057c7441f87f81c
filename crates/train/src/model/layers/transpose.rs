//! `name = "transpose"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};
use crate::ops;

/// steps and features of a sequence exchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Transpose {}

impl Kind for Transpose {
    const NAME: &'static str = "transpose";
}

impl Layer for Transpose {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let [steps, features] = input.sequence()?;
        Ok(Flow::Sequence([features, steps]).into())
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Self {}))
    }
}

impl Forward for Transpose {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        ops::swapped(x, 1)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.transposed(x, &[0, 2, 1]))
    }
}
