//! `name = "layer_norm"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::{self, ForwardContext};
use crate::onnx::{Graph, Value};

/// `torch.nn.LayerNorm` over the features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LayerNorm {
    /// whether there is a bias.
    pub bias: bool,
    /// added to the variance.
    #[schemars(range(min = 0.0), example = 1e-6)]
    pub eps: f64,
}

impl Default for LayerNorm {
    fn default() -> Self {
        Self { bias: true, eps: 1e-5 }
    }
}

impl Kind for LayerNorm {
    const NAME: &'static str = "layer_norm";
}

impl Layer for LayerNorm {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        Ok(input.numbers()?.into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.outputs() + sizes.bias(self.bias)
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let new = if self.bias { nn::LayerNorm::new } else { nn::LayerNorm::without_bias };
        let norm = new(&site.builder(), site.sizes().outputs())?;
        Ok(Node::of(norm.with_eps(self.eps)))
    }
}

impl Forward for nn::LayerNorm {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        nn::LayerNorm::forward(self, x)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        nn::LayerNorm::onnx(self, graph, x)
    }
}
