//! `name = "embedding"`

use candle_core::{DType, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::{self, ForwardContext};
use crate::onnx::{Graph, Value};

/// a learnt vector per token, `torch.nn.Embedding`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Embedding {
    /// width of the vectors.
    #[schemars(range(min = 1, max = 16_777_216), example = 128)]
    pub out_features: u32,
}

impl Kind for Embedding {
    const NAME: &'static str = "embedding";
}

impl Layer for Embedding {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        match input {
            Flow::Tokens(_) => Ok(input.with_features(self.out_features as usize).into()),
            _ => Err(input.is_no("tokens").into()),
        }
    }

    fn details(&self, sizes: &Sizes) -> String {
        format!(" of {}", sizes.needed)
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.needed * sizes.outputs()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let Sizes { needed: vocabulary, .. } = site.sizes();
        nn::Embedding::new(&site.builder(), vocabulary, site.sizes().outputs())
            .map(|table| Node::of(Table(table)))
    }
}

/// Tokens -> their vectors.
struct Table(nn::Embedding);

impl Forward for Table {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        self.0.forward(&x.to_dtype(DType::U32)?)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        self.0.onnx(graph, x)
    }
}
