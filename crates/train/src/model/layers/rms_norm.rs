//! `name = "rms_norm"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::{self, ForwardContext};
use crate::onnx::{Graph, Value};

/// `torch.nn.RMSNorm` over the features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RmsNorm {
    /// added to the mean square; the default is PyTorch's, the smallest step of f32 after 1.
    #[schemars(range(min = 0.0), example = 1e-6)]
    pub eps: f64,
}

impl Default for RmsNorm {
    fn default() -> Self {
        Self { eps: f64::from(f32::EPSILON) }
    }
}

impl Kind for RmsNorm {
    const NAME: &'static str = "rms_norm";
}

impl Layer for RmsNorm {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        Ok(input.numbers()?.into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.outputs()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        nn::RmsNorm::new(&site.builder(), site.sizes().outputs(), self.eps).map(Node::of)
    }
}

impl Forward for nn::RmsNorm {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        nn::RmsNorm::forward(self, x)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        nn::RmsNorm::onnx(self, graph, x)
    }
}
