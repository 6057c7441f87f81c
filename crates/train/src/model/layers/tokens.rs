//! `name = "tokens"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};

/// image to sequence: one step per pixel, row by row.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Tokens {}

impl Kind for Tokens {
    const NAME: &'static str = "tokens";
}

impl Layer for Tokens {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let [channels, height, width] = input.image()?;
        Ok(Flow::Sequence([height * width, channels]).into())
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Self {}))
    }
}

impl Forward for Tokens {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        x.flatten(1, 2)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.reshaped(x, &[0, -1, x.features() as i64]))
    }
}
