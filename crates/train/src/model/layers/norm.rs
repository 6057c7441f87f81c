//! `name = "batch_norm"`, `"layer_norm"`, `"group_norm"`, `"instance_norm"`, `"rms_norm"`

use candle_core::{D, DType, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{
    Flow, Forward, InferredLayer, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::nn::{self, BatchNorm2d, ForwardContext};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Activation, Weight};

/// `torch.nn.BatchNorm1d` or `2d` over channels or features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BatchNorm {
    /// added to the variance.
    #[schemars(range(min = 0.0), example = 1e-3)]
    pub eps: f64,
    /// share by which the running statistics move towards those of a batch.
    #[schemars(range(min = 0.0, max = 1.0), example = 0.01)]
    pub momentum: f64,
}

impl Default for BatchNorm {
    fn default() -> Self {
        Self { eps: 1e-5, momentum: 0.1 }
    }
}

impl Kind for BatchNorm {
    const NAME: &'static str = "batch_norm";
}

impl Layer for BatchNorm {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        Ok(input.numbers()?.into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        2 * sizes.outputs()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let sizes = site.sizes();
        let norm = BatchNorm2d::new(&site.builder(), sizes.outputs(), sizes.output.rows(), 1.0)?;
        Ok(Node::Norm(norm.with_options(self.eps, self.momentum), Activation::Identity))
    }
}

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
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
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

/// `torch.nn.GroupNorm`: by mean and variance of each sample's groups of channels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupNorm {
    /// groups, which divide the channels.
    #[schemars(range(min = 1, max = 16_777_216), example = 8)]
    pub num_groups: u32,
    /// added to the variance.
    #[serde(default = "eps")]
    #[schemars(range(min = 0.0), example = 1e-6)]
    pub eps: f64,
}

fn eps() -> f64 {
    1e-5
}

impl Kind for GroupNorm {
    const NAME: &'static str = "group_norm";
}

impl Layer for GroupNorm {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let groups = self.num_groups;
        let channels = input.numbers()?.features().unwrap_or(0);
        if !channels.is_multiple_of(groups as usize) {
            let what = format!("{groups} groups do not divide {channels} channels");
            return Err(Unfit { key: "num_groups", what, help: None }.into());
        }
        Ok(input.into())
    }

    fn details(&self, _: &Sizes) -> String {
        format!(", {} groups", self.num_groups)
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        2 * sizes.outputs()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let groups = self.num_groups as usize;
        let channels = site.sizes().outputs();
        let norm = nn::GroupNorm::new(&site.builder(), groups, channels)?;
        Ok(Node::of(norm.with_eps(self.eps)))
    }
}

impl Forward for nn::GroupNorm {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        nn::GroupNorm::forward(self, x)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        nn::GroupNorm::onnx(self, graph, x)
    }
}

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
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
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

/// An instance norm without scale and shift.
struct Plain {
    eps: f64,
}

impl Forward for Plain {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let channels = x.dim(D::Minus1)?;
        let scale = Tensor::ones(channels, DType::F32, x.device())?;
        let affine = [&Weight::from(&scale), &Weight::from(&scale.zeros_like()?)];
        ops::group_norm(x, affine, channels, self.eps)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        Ok(graph.group_norm(x, None, x.features(), self.eps))
    }
}

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
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
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
