//! `name = "position_embedding"`

use candle_core::{Device, Error, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes};
use crate::nn::{Embedding, ForwardContext, Init};
use crate::onnx::{Graph, Value};

/// Deviation of the first vectors, as in GPT-2.
const STD: f64 = 0.02;

/// a learnt vector per step, added.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PositionEmbedding {}

impl Kind for PositionEmbedding {
    const NAME: &'static str = "position_embedding";
}

impl Layer for PositionEmbedding {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        input.sequence()?;
        Ok(input.into())
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        sizes.output.rows() * sizes.outputs()
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        // The plan gives it such a shape; only a plan that was edited by hand does not.
        let [steps, features] =
            site.sizes().output.sequence().map_err(|unfit| Error::Msg(unfit.what))?;
        let table = Embedding::with_init(&site.builder(), steps, features, Init::Normal(STD))?;
        Ok(Node::of(Positions { table, steps }))
    }
}

struct Positions {
    table: Embedding,
    steps: usize,
}

impl Forward for Positions {
    fn forward(&self, x: &Tensor, _: &ForwardContext) -> CandleResult<Tensor> {
        let steps = Tensor::arange(0, self.steps as u32, &Device::Cpu)?;
        x.broadcast_add(&self.table.forward(&steps)?)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let table = self.table.weight().onnx(graph)?;
        Ok(graph.add(x, &table))
    }
}
