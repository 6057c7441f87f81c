//! `name = "dropout"`, `"stochastic_depth"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{
    Flow, Forward, InferredLayer, Layer, LayerMisfit, Node, Scope, Site, Sizes,
};
use crate::nn::{self, DropPath, ForwardContext};
use crate::onnx::{Graph, Value};

/// `torch.nn.Dropout`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Dropout {
    /// probability.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), example = 0.1)]
    pub p: f64,
}

impl Kind for Dropout {
    const NAME: &'static str = "dropout";
}

impl Layer for Dropout {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        Ok(input.numbers()?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        format!(" {}", self.p)
    }

    fn draws(&self) -> bool {
        true
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(nn::Dropout::new(&site.draws(), self.p)))
    }
}

impl Forward for nn::Dropout {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        nn::Dropout::forward(self, x, pass)
    }

    fn onnx(&self, _: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(x.clone())
    }
}

/// `torchvision.ops.StochasticDepth` by rows, timm's `DropPath`: in training, whole samples become
/// zero. The last layer of a `residual`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StochasticDepth {
    /// probability.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), example = 0.1)]
    pub p: f64,
}

impl Kind for StochasticDepth {
    const NAME: &'static str = "stochastic_depth";
}

impl Layer for StochasticDepth {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        Ok(input.numbers()?.into())
    }

    fn details(&self, _: &Sizes) -> String {
        format!(" {}", self.p)
    }

    fn draws(&self) -> bool {
        true
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(DropPath::new(&site.draws(), self.p)))
    }
}

impl Forward for DropPath {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        DropPath::forward(self, x, pass)
    }

    fn onnx(&self, _: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(x.clone())
    }
}
