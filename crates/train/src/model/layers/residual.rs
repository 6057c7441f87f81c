//! `name = "residual"`

use std::sync::Arc;

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Kind};
use crate::model::layers::sequential::end;
use crate::model::layers::{
    Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit, run, run_onnx,
};
use crate::nn::{self, ForwardContext};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Activation};

/// x + layers(x), or shortcut(x) + layers(x), then `activation`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Residual {
    /// the layers.
    pub layers: Vec<Entry>,
    /// layers of the shortcut branch; empty = identity.
    #[serde(default)]
    pub shortcut: Vec<Entry>,
    /// what follows the sum.
    #[serde(default)]
    #[schemars(example = &"relu")]
    pub activation: ResidualActivation,
}

/// What follows the sum of a residual block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ResidualActivation {
    /// Nothing.
    #[default]
    None,
    /// `ReLU`.
    Relu,
}

impl Kind for Residual {
    const NAME: &'static str = "residual";
}

impl Layer for Residual {
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let layers = scope.sequence("layers", &self.layers, input)?;
        let shortcut = scope.sequence("shortcut", &self.shortcut, input)?;
        let output = end(&layers)?;
        let round = shortcut.last().map_or(input, |last| last.output);
        if output != round {
            let way = if shortcut.is_empty() { "its input is" } else { "its shortcut gives" };
            let output = output.in_words();
            let round = round.in_words();
            let help = Some("make their shapes match, for example with `shortcut`: they are added");
            let what = format!("gives {output}, but {way} {round}");
            return Err(Unfit { help, ..Unfit::of_all(what) }.into());
        }
        Ok(Decided { output, layers, shortcut })
    }

    fn details(&self, _: &Sizes) -> String {
        match self.activation {
            ResidualActivation::None => String::new(),
            ResidualActivation::Relu => ", relu".to_owned(),
        }
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let activation = match self.activation {
            ResidualActivation::None => Activation::Identity,
            ResidualActivation::Relu => Activation::Relu,
        };
        let layers = site.sequence()?;
        let shortcut = site.shortcut()?;
        Ok(Node::of(Block(Arc::new(ResidualBranches { layers, shortcut, activation }))))
    }
}

/// Keeps its input only, where activations are computed again.
struct Block(Arc<ResidualBranches>);

impl Forward for Block {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        nn::run_block(&self.0, x, pass)
    }

    fn takes_half(&self) -> bool {
        true
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let ResidualBranches { layers, shortcut, activation } = self.0.as_ref();
        let round = run_onnx(shortcut, graph, x)?;
        let added = run_onnx(layers, graph, x)?;
        let sum = graph.add(&added, &round);
        Ok(match activation {
            Activation::Identity => sum,
            Activation::Relu => graph.unary("Relu", &sum, &[]),
        })
    }
}

/// activation(layers(x) + shortcut(x)).
struct ResidualBranches {
    layers: Vec<Node>,
    shortcut: Vec<Node>,
    activation: Activation,
}

impl nn::Block for ResidualBranches {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        let round = run(&self.shortcut, x.clone(), pass)?;
        if let Some((Node::ConvNorm(conv, norm, Activation::Identity), before)) =
            self.layers.split_last()
        {
            let y = run(before, x.clone(), pass)?;
            return norm.after(conv, &y, Some(&round), self.activation, pass);
        }
        let sum = ops::add(&round, &run(&self.layers, x.clone(), pass)?)?;
        match self.activation {
            Activation::Identity => Ok(sum),
            Activation::Relu => ops::relu(&sum),
        }
    }
}
