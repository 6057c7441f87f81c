//! `name = "cross_attention"`

use candle_core::{D, Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Kind};
use crate::model::layers::lengths::{own_steps, without_padding};
use crate::model::layers::sequential::end;
use crate::model::layers::{
    Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit, run, run_onnx,
};
use crate::nn::{Dropout, ForwardContext, Linear};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Attention};

/// attention of another sequence to this one: each step of layers(x) asks all steps of x, with
/// linear layers for queries (`q`), for keys and values (`kv`), and after it (`proj`), as timm's
/// `AttentionPoolLatent`. The padding of recordings is hidden.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CrossAttention {
    /// heads, which divide the features of the queries.
    #[schemars(range(min = 1, max = 16_777_216), example = 4)]
    pub n_heads: u32,
    /// layers that make the queries of x; `latents` makes them of nothing.
    pub layers: Vec<Entry>,
    /// dropout of the probabilities.
    #[serde(default)]
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), example = 0.1)]
    pub p: f64,
}

impl Kind for CrossAttention {
    const NAME: &'static str = "cross_attention";
}

impl Layer for CrossAttention {
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        input.sequence()?;
        let layers = scope.sequence("layers", &self.layers, input)?;
        let output = end(&layers)?;
        let [_, features] = output.sequence()?;
        let heads = self.n_heads;
        if !features.is_multiple_of(heads as usize) {
            let what = format!("{heads} heads do not divide {features} features");
            return Err(Unfit { key: "n_heads", what, help: None }.into());
        }
        Ok(Decided { output, layers, shortcut: Vec::new() })
    }

    fn details(&self, sizes: &Sizes) -> String {
        format!(", {} heads{}", self.n_heads, without_padding(sizes))
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        let width = sizes.outputs();
        2 * width * (width + 1) + 2 * width * (sizes.inputs() + 1)
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let width = sizes.outputs();
        let asked = sizes.input.rows();
        let of_context = 4 * (asked * sizes.inputs() * width) as u64;
        sizes.product(2 * width) + of_context + sizes.product(2 * asked)
    }

    fn draws(&self) -> bool {
        true
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let builder = site.builder();
        let sizes = site.sizes();
        let width = sizes.outputs();
        Ok(Node::of(Built {
            queries: site.sequence()?,
            q: Linear::new(&builder.pp("q"), width, width)?,
            kv: Linear::new(&builder.pp("kv"), sizes.inputs(), 2 * width)?,
            proj: Linear::new(&builder.pp("proj"), width, width)?,
            heads: self.n_heads as usize,
            padded: sizes.input.padded(),
            dropout: Dropout::new(&site.draws(), self.p),
        }))
    }
}

struct Built {
    /// What makes the queries.
    queries: Vec<Node>,
    q: Linear,
    kv: Linear,
    proj: Linear,
    heads: usize,
    /// Frames from one step of x to the next, if some are padding.
    padded: Option<usize>,
    /// Of the probabilities.
    dropout: Dropout,
}

impl Forward for Built {
    /// x (n, steps, c) -> (n, steps of the queries, features of the queries).
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        let dropout = self.dropout.drawn(pass);
        let Self { heads, .. } = *self;
        let options = Attention { heads, causal: false, dropout, precision: pass.precision };
        let q = self.q.forward(&run(&self.queries, x.clone(), pass)?, pass)?;
        let kv = self.kv.forward(x, pass)?;
        let width = q.dim(D::Minus1)?;
        let part = |first| ops::part(&kv, 2, first, width);
        let lengths = own_steps(x, self.padded, pass)?;
        let y = ops::attention_within([&q, &part(0)?, &part(width)?], options, lengths.as_deref())?;
        self.proj.forward(&y, pass)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let queries = run_onnx(&self.queries, graph, x)?;
        let q = self.q.onnx(graph, &queries)?;
        let kv = self.kv.onnx(graph, x)?;
        let width = q.features();
        let [k, v] = [0, width].map(|first| graph.narrowed(&kv, 2, first, width));
        let lengths = self.padded.and_then(|stride| graph.lengths(stride));
        let y = graph.attention_within([&q, &k, &v], self.heads, false, lengths.as_ref());
        self.proj.onnx(graph, &y)
    }
}
