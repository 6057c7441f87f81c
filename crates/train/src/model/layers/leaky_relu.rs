//! `name = "leaky_relu"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::ForwardContext;
use crate::onnx::{Attribute, Graph, Value};
use crate::ops;

/// x where it is positive, else `negative_slope` x, `torch.nn.LeakyReLU`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LeakyRelu {
    /// factor of negative numbers.
    #[schemars(range(min = 0.0), example = 0.2)]
    pub negative_slope: f64,
}

impl Default for LeakyRelu {
    fn default() -> Self {
        Self { negative_slope: 0.01 }
    }
}

impl Kind for LeakyRelu {
    const NAME: &'static str = "leaky_relu";
}

impl Layer for LeakyRelu {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        Ok(input.numbers()?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        format!(" {}", self.negative_slope)
    }

    fn build(&self, _: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(self.clone()))
    }
}

impl Forward for LeakyRelu {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        ops::leaky_relu(x, self.negative_slope)
    }

    fn takes_half(&self) -> bool {
        true
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.unary("LeakyRelu", x, &[Attribute::Float("alpha", self.negative_slope)]))
    }
}
