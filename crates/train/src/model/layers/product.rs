//! `name = "product"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Kind};
use crate::model::layers::sequential::end;
use crate::model::layers::{
    Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Unfit, run, run_onnx,
};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};
use crate::ops;

/// x times layers(x), or shortcut(x) times layers(x), value by value; where layers(x) is a vector,
/// it is the gate of each channel, as in squeeze and excitation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Product {
    /// the layers.
    pub layers: Vec<Entry>,
    /// layers of the shortcut branch; empty = identity.
    #[serde(default)]
    pub shortcut: Vec<Entry>,
}

impl Kind for Product {
    const NAME: &'static str = "product";
}

impl Layer for Product {
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let layers = scope.sequence("layers", &self.layers, input)?;
        let shortcut = scope.sequence("shortcut", &self.shortcut, input)?;
        let gate = end(&layers)?;
        let round = shortcut.last().map_or(input, |last| last.output);
        let is_gate = matches!(gate, Flow::Vector(n) if Some(n) == round.features());
        if gate != round && !is_gate {
            let way = if shortcut.is_empty() { "its input is" } else { "its shortcut gives" };
            let gate = gate.in_words();
            let round = round.in_words();
            let help = Some(
                "give both one shape, or one a vector of as many features: they are multiplied",
            );
            let what = format!("gives {gate}, but {way} {round}");
            return Err(Unfit { help, ..Unfit::of_all(what) }.into());
        }
        Ok(Decided { output: round, layers, shortcut })
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Factors { layers: site.sequence()?, shortcut: site.shortcut()? }))
    }
}

/// layers(x) shortcut(x).
struct Factors {
    layers: Vec<Node>,
    shortcut: Vec<Node>,
}

impl Forward for Factors {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        let round = run(&self.shortcut, x.clone(), pass)?;
        let factor = run(&self.layers, x.clone(), pass)?;
        if factor.dims() == round.dims() {
            return ops::product(&round, &factor);
        }
        ops::gated(&round, &factor)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let round = run_onnx(&self.shortcut, graph, x)?;
        let factor = run_onnx(&self.layers, graph, x)?;
        if factor.rank() == round.rank() {
            return Ok(graph.mul(&round, &factor));
        }
        Ok(graph.gated(&round, &factor))
    }
}
