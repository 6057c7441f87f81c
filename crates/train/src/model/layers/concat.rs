//! `name = "concat"`

use candle_core::{D, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Kind};
use crate::model::layers::sequential::end;
use crate::model::layers::{Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Unfit};
use crate::nn::ForwardContext;
use crate::onnx::{Graph, Value};
use crate::ops;

/// each layer on the same input; the outputs side by side, along channels or features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Concat {
    /// the layers.
    pub layers: Vec<Entry>,
}

impl Kind for Concat {
    const NAME: &'static str = "concat";
}

impl Layer for Concat {
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let layers = scope.branches("layers", &self.layers, input)?;
        end(&layers)?;
        let first = layers.first().map_or(input, |branch| branch.output);
        let mut features = 0;
        for (index, branch) in layers.iter().enumerate() {
            let other = branch.output;
            let Some(more) = other.features().filter(|&n| other == first.with_features(n)) else {
                let what = format!("gives {}, the first {}", other.in_words(), first.in_words());
                let help = Some("give all branches one shape but for the features");
                return Err(scope.misfit_of("layers", index, Unfit { key: "name", what, help }));
            };
            features += more;
        }
        Ok(Decided { output: first.with_features(features), layers, shortcut: Vec::new() })
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(Branches(site.branches()?)))
    }
}

struct Branches(Vec<Node>);

impl Forward for Branches {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        let outputs = self.0.iter().map(|branch| ops::widen(&branch.forward(x, pass)?));
        Tensor::cat(&outputs.collect::<CandleResult<Vec<_>>>()?, D::Minus1)
    }

    fn takes_half(&self) -> bool {
        true
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let outputs = self.0.iter().map(|branch| branch.onnx(graph, x));
        let outputs = outputs.collect::<CandleResult<Vec<_>>>()?;
        let outputs: Vec<&Value> = outputs.iter().collect();
        Ok(graph.concatenated(&outputs, outputs[0].rank() - 1))
    }
}
