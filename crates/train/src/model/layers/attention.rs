//! `name = "attention"`, `"cross_attention"`

use candle_core::{D, Result as CandleResult, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, Kind};
use crate::model::layers::containers::last_output;
use crate::model::layers::{
    Flow, Forward, InferredLayer, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit, run,
    run_onnx,
};
use crate::nn::{Dropout, ForwardContext, Linear};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Attention, Rope};

/// self-attention over the steps of a sequence, with a linear layer before it (`qkv`) and one after
/// it (`proj`), as timm's. The padding of recordings is masked, like the `key_padding_mask` of
/// `torch.nn.MultiheadAttention`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SelfAttention {
    /// heads, which divide the features.
    #[schemars(range(min = 1, max = 16_777_216), example = 4)]
    pub n_heads: u32,
    /// heads of keys and values, each shared by `n_heads / n_kv_heads` heads of queries; none is
    /// `n_heads`.
    #[serde(default)]
    #[schemars(range(min = 1, max = 16_777_216), example = 1)]
    pub n_kv_heads: Option<u32>,
    /// base of the wavelengths of rotary positions, in the order of `HuggingFace`'s Llama; none is
    /// without them.
    #[serde(default)]
    #[schemars(range(min = 1.0), example = 10000.0)]
    pub rope_theta: Option<f64>,
    /// whether a step sees only itself and those before it.
    #[serde(default)]
    #[schemars(example = true)]
    pub causal: bool,
    /// dropout of the probabilities.
    #[serde(default)]
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), example = 0.1)]
    pub p: f64,
}

impl SelfAttention {
    fn kv_heads(&self) -> u32 {
        self.n_kv_heads.unwrap_or(self.n_heads)
    }

    /// Features of keys, and of values.
    fn kv_width(&self, sizes: &Sizes) -> usize {
        sizes.inputs() / self.n_heads as usize * self.kv_heads() as usize
    }
}

impl Kind for SelfAttention {
    const NAME: &'static str = "attention";
}

impl Layer for SelfAttention {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        let [_, features] = input.sequence()?;
        let heads = self.n_heads;
        check_heads(heads, features)?;
        if !heads.is_multiple_of(self.kv_heads()) {
            let what = format!("{heads} heads cannot share {} of keys and values", self.kv_heads());
            return Err(Unfit { key: "n_kv_heads", what, help: None }.into());
        }
        let width = features / heads as usize;
        if self.rope_theta.is_some() && !width.is_multiple_of(2) {
            let what = format!("turns pairs of features, but a head has {width}");
            return Err(Unfit { key: "rope_theta", what, help: None }.into());
        }
        Ok(input.into())
    }

    fn details(&self, sizes: &Sizes) -> String {
        let on_kv_heads = self.n_kv_heads.map_or(String::new(), |n| format!(" on {n}"));
        let rotary = if self.rope_theta.is_some() { ", rotary" } else { "" };
        let causal = if self.causal { ", causal" } else { "" };
        let padding = without_padding(sizes);
        format!(", {} heads{on_kv_heads}{rotary}{causal}{padding}", self.n_heads)
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        (sizes.inputs() + 1) * (2 * sizes.inputs() + 2 * self.kv_width(sizes))
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        let products = 2 * sizes.inputs() + 2 * self.kv_width(sizes);
        sizes.product(products) + sizes.product(2 * sizes.output.rows())
    }

    fn draws(&self) -> bool {
        true
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let builder = site.builder();
        let inputs = site.sizes().inputs();
        let heads = self.n_heads as usize;
        Ok(Node::of(SelfAttentionLayer {
            qkv: Linear::new(
                &builder.pp("qkv"),
                inputs,
                inputs + 2 * self.kv_width(&site.sizes()),
            )?,
            proj: Linear::new(&builder.pp("proj"), inputs, inputs)?,
            heads,
            kv_heads: self.kv_heads() as usize,
            rope: self.rope_theta.map(|theta| Rope::plain(theta, inputs / heads)),
            causal: self.causal,
            padded: site.sizes().input.padded(),
            dropout: Dropout::new(&site.draws(), self.p),
        }))
    }
}

/// One linear layer for queries, keys and values, and one after the attention.
struct SelfAttentionLayer {
    qkv: Linear,
    proj: Linear,
    heads: usize,
    kv_heads: usize,
    rope: Option<Rope>,
    causal: bool,
    /// Frames from one step to the next, if some are padding.
    padded: Option<usize>,
    /// Dropout of the probabilities.
    dropout: Dropout,
}

impl Forward for SelfAttentionLayer {
    /// x (n, steps, c) -> (n, steps, c).
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        let dropout = self.dropout.drawn(pass);
        let Self { heads, kv_heads, causal, .. } = *self;
        let options = Attention { heads, causal, dropout, precision: pass.precision };
        let qkv = self.qkv.forward(x, pass)?;
        let lengths = own_steps(x, self.padded, pass)?;
        let lengths = lengths.as_deref();
        if kv_heads == heads && self.rope.is_none() {
            let y = ops::attention_packed_within(&qkv, options, lengths)?;
            return self.proj.forward(&y, pass);
        }
        let width = x.dim(D::Minus1)?;
        let shared = width / heads * kv_heads;
        let part = |first, width| ops::narrow(&qkv, 2, first, width);
        let mut q = part(0, width)?;
        let mut k = part(width, shared)?;
        if let Some(rope) = &self.rope {
            (q, k) = (ops::rotary(&q, heads, rope)?, ops::rotary(&k, kv_heads, rope)?);
        }
        let v = self.for_each_query(&part(width + shared, shared)?)?;
        let k = self.for_each_query(&k)?;
        let y = ops::attention_within([&q, &k, &v], options, lengths)?;
        self.proj.forward(&y, pass)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> CandleResult<Value> {
        let Self { heads, kv_heads, causal, .. } = *self;
        let qkv = self.qkv.onnx(graph, x)?;
        let lengths = self.padded.and_then(|stride| graph.lengths(stride));
        let lengths = lengths.as_ref();
        if kv_heads == heads && self.rope.is_none() {
            let y = graph.attention_packed_within(&qkv, heads, causal, lengths);
            return self.proj.onnx(graph, &y);
        }
        let width = x.features();
        let shared = width / heads * kv_heads;
        let [mut q, mut k, v] = [(0, width), (width, shared), (width + shared, shared)]
            .map(|(first, width)| graph.narrowed(&qkv, 2, first, width));
        if let Some(rope) = &self.rope {
            let tables = rope.onnx(graph);
            let tables = [&tables[0], &tables[1]];
            q = graph.rotary(&q, heads, tables);
            k = graph.rotary(&k, kv_heads, tables);
        }
        let [k, v] = [k, v].map(|part| graph.heads_repeated(&part, kv_heads, heads));
        let y = graph.attention_within([&q, &k, &v], heads, causal, lengths);
        self.proj.onnx(graph, &y)
    }
}

impl SelfAttentionLayer {
    /// (n, t, `kv_heads` d) -> (n, t, heads d): each head as often as it is used.
    fn for_each_query(&self, x: &Tensor) -> CandleResult<Tensor> {
        let (n, t, width) = x.dims3()?;
        let times = self.heads / self.kv_heads;
        let d = width / self.kv_heads;
        let x = x.reshape((n, t, self.kv_heads, 1, d))?;
        x.broadcast_as((n, t, self.kv_heads, times, d))?.reshape((n, t, self.heads * d))
    }
}

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
    fn decide(&self, input: Flow, scope: &mut Scope<'_>) -> Result<InferredLayer, LayerMisfit> {
        input.sequence()?;
        let layers = scope.sequence("layers", &self.layers, input)?;
        let output = last_output(&layers)?;
        let [_, features] = output.sequence()?;
        check_heads(self.n_heads, features)?;
        Ok(InferredLayer { output, layers, shortcut: Vec::new() })
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
        let steps = sizes.input.rows();
        let kv = 4 * (steps * sizes.inputs() * width) as u64;
        sizes.product(2 * width) + kv + sizes.product(2 * steps)
    }

    fn draws(&self) -> bool {
        true
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let builder = site.builder();
        let sizes = site.sizes();
        let width = sizes.outputs();
        Ok(Node::of(CrossAttentionLayer {
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

struct CrossAttentionLayer {
    /// Layers that make the queries of x.
    queries: Vec<Node>,
    q: Linear,
    kv: Linear,
    proj: Linear,
    heads: usize,
    /// Frames from one step of x to the next, if some are padding.
    padded: Option<usize>,
    /// Dropout of the probabilities.
    dropout: Dropout,
}

impl Forward for CrossAttentionLayer {
    /// x (n, steps, c) -> (n, steps of the queries, features of the queries).
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        let dropout = self.dropout.drawn(pass);
        let Self { heads, .. } = *self;
        let options = Attention { heads, causal: false, dropout, precision: pass.precision };
        let q = self.q.forward(&run(&self.queries, x.clone(), pass)?, pass)?;
        let kv = self.kv.forward(x, pass)?;
        let width = q.dim(D::Minus1)?;
        let part = |first| ops::narrow(&kv, 2, first, width);
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

fn check_heads(heads: u32, features: usize) -> Result<(), Unfit> {
    if features.is_multiple_of(heads as usize) {
        return Ok(());
    }
    let what = format!("{heads} heads do not divide {features} features");
    Err(Unfit { key: "n_heads", what, help: None })
}

/// Number of steps of each sample of x (n, steps, c) that are not padding; `None` where samples are
/// not padded. `padded` is the number of frames from one step to the next.
pub(super) fn own_steps(
    x: &Tensor,
    padded: Option<usize>,
    pass: &ForwardContext,
) -> CandleResult<Option<Vec<usize>>> {
    let Some(stride) = padded else { return Ok(None) };
    let Some(lengths) = &pass.lengths else { bail!("samples are padded, but have no lengths") };
    Ok(Some(lengths.strided(x.dim(1)?, stride)))
}

/// ", without padding" if the input is padded.
pub(super) fn without_padding(sizes: &Sizes) -> &'static str {
    if sizes.input.padded().is_some() { ", without padding" } else { "" }
}
