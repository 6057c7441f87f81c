//! `name = "group_norm"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{
    Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::nn::{self, ForwardContext};
use crate::onnx::{Graph, Value};

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
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
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
