//! `name = "sequential"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Kind};
use crate::model::layers::{
    Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Unfit, run, run_onnx,
};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};
use crate::plan::LayerPlan;

/// layers one after another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sequential {
    /// the layers.
    pub layers: Vec<Entry>,
}

impl Kind for Sequential {
    const NAME: &'static str = "sequential";
}

impl Layer for Sequential {
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let layers = scope.sequence("layers", &self.layers, input)?;
        let output = end(&layers)?;
        Ok(Decided { output, layers, shortcut: Vec::new() })
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(InOrder(site.sequence()?)))
    }
}

/// What the last of `layers` gives; there is one.
pub(super) fn end(layers: &[LayerPlan]) -> Result<Flow, Unfit> {
    let last = layers.last().map(|last| last.output);
    last.ok_or_else(|| Unfit::of_all("has no layers inside".to_owned()))
}

/// Nodes one after another.
pub(super) struct InOrder(pub(super) Vec<Node>);

impl Forward for InOrder {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        run(&self.0, x.clone(), pass)
    }

    fn takes_half(&self) -> bool {
        true
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        run_onnx(&self.0, graph, x)
    }
}
