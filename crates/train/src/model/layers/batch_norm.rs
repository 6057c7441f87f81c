//! `name = "batch_norm"`

use candle_core::Result as CandleResult;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::BatchNorm2d;
use crate::ops::Activation;

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
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
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
