//! `name = "instance_norm"`

use candle_core::{DType, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::{self, ForwardContext};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Weight};

/// `torch.nn.InstanceNorm1d` or `2d`: each channel of each sample by its own mean and variance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InstanceNorm {
    /// whether there are a learnt scale and shift of each channel.
    #[schemars(example = true)]
    pub affine: bool,
    /// added to the variance.
    #[schemars(range(min = 0.0), example = 1e-6)]
    pub eps: f64,
}

impl Default for InstanceNorm {
    fn default() -> Self {
        Self { affine: false, eps: 1e-5 }
    }
}

impl Kind for InstanceNorm {
    const NAME: &'static str = "instance_norm";
}

impl Layer for InstanceNorm {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        if input.numbers()?.rows() < 2 {
            return Err(input.is_no("an image or a sequence of several values").into());
        }
        Ok(input.into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        if self.affine { 2 * sizes.outputs() } else { 0 }
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let channels = site.sizes().outputs();
        let eps = self.eps;
        if !self.affine {
            return Ok(Node::of(Plain { eps }));
        }
        let norm = nn::GroupNorm::new(&site.builder(), channels, channels)?;
        Ok(Node::of(norm.with_eps(eps)))
    }
}

/// Without scale and shift.
struct Plain {
    eps: f64,
}

impl Forward for Plain {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let channels = x.dim(candle_core::D::Minus1)?;
        let scale = Tensor::ones(channels, DType::F32, x.device())?;
        let affine = [&Weight::from(&scale), &Weight::from(&scale.zeros_like()?)];
        ops::group_norm(x, affine, channels, self.eps)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.group_norm(x, None, x.features(), self.eps))
    }
}
