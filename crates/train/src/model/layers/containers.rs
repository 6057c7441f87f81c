//! Layers that hold layers: `name = "sequential"`, `"repeat"`, `"residual"`, `"product"`,
//! `"concat"`

use std::sync::Arc;

use candle_core::{D, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Kind, Requirement};
use crate::model::layers::{
    Flow, Forward, InferredLayer, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit, run,
    run_onnx,
};
use crate::nn::{self, ForwardContext};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Activation};
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
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let layers = scope.sequence("layers", &self.layers, input)?;
        let output = last_output(&layers)?;
        Ok(InferredLayer { output, layers, shortcut: Vec::new() })
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(InOrder(site.sequence()?)))
    }
}

/// Output of the last of `layers`; an error if there is none.
pub(super) fn last_output(layers: &[LayerPlan]) -> Result<Flow, Unfit> {
    let last = layers.last().map(|last| last.output);
    last.ok_or_else(|| Unfit::of_all("has no layers inside".to_owned()))
}

/// Layers that give `output` beside a shortcut, or an input, of another shape.
fn unequal(output: Flow, around: Flow, shortcut: &[LayerPlan], help: &'static str) -> Unfit {
    let way = if shortcut.is_empty() { "its input is" } else { "its shortcut gives" };
    let what = format!("gives {}, but {way} {}", output.in_words(), around.in_words());
    Unfit { help: Some(help), ..Unfit::of_all(what) }
}

struct InOrder(Vec<Node>);

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

/// layers several times, each time with parameters of their own: those of the key `blocks` are
/// called `blocks.0`, `blocks.1` and so on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// how often.
    #[schemars(range(min = 1, max = 100_000), example = 2)]
    pub times: u32,
    /// the layers.
    pub layers: Vec<Entry>,
}

impl Kind for Repeat {
    const NAME: &'static str = "repeat";
    const REQUIREMENTS: &'static [Requirement] = &[Requirement::EntryKey];
}

impl Layer for Repeat {
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let layers = scope.sequence("layers", &self.layers, input)?;
        let output = last_output(&layers)?;
        Ok(InferredLayer { output, layers, shortcut: Vec::new() })
    }

    fn times(&self) -> Option<u32> {
        Some(self.times)
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        Ok(Node::of(InOrder(site.sequence()?)))
    }
}

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
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let layers = scope.sequence("layers", &self.layers, input)?;
        let shortcut = scope.sequence("shortcut", &self.shortcut, input)?;
        let output = last_output(&layers)?;
        let around = shortcut.last().map_or(input, |last| last.output);
        if output != around {
            let help = "make their shapes match, for example with `shortcut`: they are added";
            return Err(unequal(output, around, &shortcut, help).into());
        }
        Ok(InferredLayer { output, layers, shortcut })
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

/// Under activation checkpointing, the backward pass keeps its input alone.
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
        let around = run_onnx(shortcut, graph, x)?;
        let added = run_onnx(layers, graph, x)?;
        let sum = graph.add(&added, &around);
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
        let around = run(&self.shortcut, x.clone(), pass)?;
        if let Some((Node::ConvNorm(conv, norm, Activation::Identity), before)) =
            self.layers.split_last()
        {
            let y = run(before, x.clone(), pass)?;
            return norm.after(conv, &y, Some(&around), self.activation, pass);
        }
        let sum = ops::add(&around, &run(&self.layers, x.clone(), pass)?)?;
        match self.activation {
            Activation::Identity => Ok(sum),
            Activation::Relu => ops::relu(&sum),
        }
    }
}

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
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let layers = scope.sequence("layers", &self.layers, input)?;
        let shortcut = scope.sequence("shortcut", &self.shortcut, input)?;
        let gate = last_output(&layers)?;
        let output = shortcut.last().map_or(input, |last| last.output);
        let is_gate = matches!(gate, Flow::Vector(n) if Some(n) == output.features());
        if gate != output && !is_gate {
            let help =
                "give both one shape, or one a vector of as many features: they are multiplied";
            return Err(unequal(gate, output, &shortcut, help).into());
        }
        Ok(InferredLayer { output, layers, shortcut })
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
        let around = run(&self.shortcut, x.clone(), pass)?;
        let factor = run(&self.layers, x.clone(), pass)?;
        if factor.dims() == around.dims() {
            return ops::product(&around, &factor);
        }
        ops::gated(&around, &factor)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let around = run_onnx(&self.shortcut, graph, x)?;
        let factor = run_onnx(&self.layers, graph, x)?;
        if factor.rank() == around.rank() {
            return Ok(graph.mul(&around, &factor));
        }
        Ok(graph.gated(&around, &factor))
    }
}

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
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let layers = scope.branches("layers", &self.layers, input)?;
        last_output(&layers)?;
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
        Ok(InferredLayer { output: first.with_features(features), layers, shortcut: Vec::new() })
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
