//! `name = "linear"`

use candle_core::Result as CandleResult;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::config::values::Auto;
use crate::model::layers::{Decided, Flow, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit};
use crate::nn;
use crate::ops::LinearActivation;

/// fully connected, over the features of a vector or of each step: `torch.nn.Linear`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Linear {
    /// width of the output; "auto" is what the data needs.
    #[schemars(schema_with = "width")]
    pub out_features: Auto<u32>,
    /// whether there is a bias.
    pub bias: bool,
}

/// "auto", or at least 1.
fn width(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [{ "const": "auto" }, { "type": "integer", "minimum": 1, "maximum": 16_777_216 }],
    })
}

impl Default for Linear {
    fn default() -> Self {
        Self { out_features: Auto::Auto, bias: true }
    }
}

impl Kind for Linear {
    const NAME: &'static str = "linear";
}

impl Layer for Linear {
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        if !matches!(input, Flow::Vector(_) | Flow::Sequence(_)) {
            let help = Some("put `global_avg_pool` or `flatten` before it");
            return Err(Unfit { help, ..input.is_no("a vector or a sequence") }.into());
        }
        let width = self.out_features.given().map_or(scope.needed(), |width| width as usize);
        Ok(input.with_features(width).into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.inputs() * sizes.outputs() + sizes.bias(self.bias)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.product(sizes.inputs())
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let sizes = site.sizes();
        let new = if self.bias { nn::Linear::new } else { nn::Linear::without_bias };
        let linear = new(&site.builder(), sizes.inputs(), sizes.outputs())?;
        Ok(Node::Linear(linear, LinearActivation::Identity))
    }
}
