//! `name = "linear"`

use candle_core::{Result as CandleResult, bail};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::config::values::Auto;
use crate::model::layers::{
    Flow, InferredLayer, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::nn::{self, Init};
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
    /// key of an `embedding` or `linear` before it whose weight it uses; none is a weight of its
    /// own.
    #[schemars(example = &"wte")]
    pub tied: Option<String>,
}

/// "auto", or at least 1.
fn width(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [{ "const": "auto" }, { "type": "integer", "minimum": 1, "maximum": 16_777_216 }],
    })
}

impl Default for Linear {
    fn default() -> Self {
        Self { out_features: Auto::Auto, bias: true, tied: None }
    }
}

impl Kind for Linear {
    const NAME: &'static str = "linear";
}

impl Layer for Linear {
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        if !matches!(input, Flow::Vector(_) | Flow::Sequence(_) | Flow::Padded(_)) {
            let help = Some("put `global_avg_pool` or `flatten` before it");
            return Err(Unfit { help, ..input.is_no("a vector or a sequence") }.into());
        }
        if let Some(key) = self.tied.as_ref().filter(|key| !scope.has_parameters(key)) {
            let what = format!("no layer before it has the key `{key}`");
            return Err(Unfit { key: "tied", what, help: None }.into());
        }
        let width = self.out_features.given().map_or(scope.needed(), |width| width as usize);
        Ok(input.with_features(width).into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        let weight = if self.tied.is_some() { 0 } else { sizes.inputs() * sizes.outputs() };
        weight + sizes.bias(self.bias)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.product(sizes.inputs())
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let sizes = site.sizes();
        if let Some(key) = &self.tied {
            let weight = site.weight_of(key)?;
            if weight.shape() != [sizes.outputs(), sizes.inputs()] {
                let found = weight.shape();
                let needed = [sizes.outputs(), sizes.inputs()];
                bail!("`{key}.weight` is {found:?}, but the layer tied to it needs {needed:?}");
            }
            let bias = self.bias.then(|| Init::torch_default(sizes.inputs()));
            let linear = nn::Linear::tied(&site.builder(), &weight, bias)?;
            return Ok(Node::Linear(linear, LinearActivation::Identity));
        }
        let new = if self.bias { nn::Linear::new } else { nn::Linear::without_bias };
        let linear = new(&site.builder(), sizes.inputs(), sizes.outputs())?;
        Ok(Node::Linear(linear, LinearActivation::Identity))
    }
}
