//! The transformers of `models.py`, as a user registers a model of their own.

use candle_core::{D, Result, Tensor};
use ddprun::config::kind::Kind;
use ddprun::kinds::Kinds;
use ddprun::model::{Architecture, Model};
use ddprun::nn::{Builder, Embedding, ForwardContext, LayerNorm, Linear};
use ddprun::ops::{self, Attention, Deviation, InstanceNorm, LinearActivation};
use ddprun::plan::ModelPlan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The models that come with ddprun, and these.
pub(crate) fn kinds() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.models.add::<GptConfig>();
    kinds.models.add::<ITransformerConfig>();
    kinds
}

/// Sizes of [`Gpt`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct GptConfig {
    /// layers.
    layers: usize,
    /// heads of each attention.
    heads: usize,
    /// width.
    width: usize,
}

impl Kind for GptConfig {
    const NAME: &'static str = "bench_gpt";
}

/// Sizes of [`ITransformer`].
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
struct ITransformerConfig {
    /// layers.
    layers: usize,
    /// heads of each attention.
    heads: usize,
    /// width.
    width: usize,
    /// width inside the feed-forward part.
    inner: usize,
}

impl Kind for ITransformerConfig {
    const NAME: &'static str = "bench_itransformer";
}

/// Self-attention over packed queries, keys and values.
struct SelfAttention {
    qkv: Linear,
    out: Linear,
    heads: usize,
    causal: bool,
}

impl SelfAttention {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let Self { heads, causal, .. } = *self;
        let attention = Attention { heads, causal, dropout: None, precision: pass.precision };
        let y = ops::attention_packed(&self.qkv.forward(x, pass)?, attention)?;
        self.out.forward(&y, pass)
    }
}

/// Two linear layers around a GELU.
struct FeedForward {
    widen: Linear,
    narrow: Linear,
}

impl FeedForward {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let hidden = self.widen.forward_activated(x, LinearActivation::Gelu, pass)?;
        self.narrow.forward(&hidden, pass)
    }
}

struct Layer {
    norms: [LayerNorm; 2],
    attention: SelfAttention,
    feed_forward: FeedForward,
}

type MakeLinear = fn(&Builder, usize, usize) -> Result<Linear>;
type MakeNorm = fn(&Builder, usize) -> Result<LayerNorm>;

impl Layer {
    fn new(
        builder: &Builder,
        [width, heads, inner]: [usize; 3],
        causal: bool,
        (linear, norm): (MakeLinear, MakeNorm),
    ) -> Result<Self> {
        let norms = [norm(&builder.pp("norm1"), width)?, norm(&builder.pp("norm2"), width)?];
        let qkv = linear(&builder.pp("qkv"), width, 3 * width)?;
        let out = linear(&builder.pp("out"), width, width)?;
        let feed_forward = FeedForward {
            widen: linear(&builder.pp("widen"), width, inner)?,
            narrow: linear(&builder.pp("narrow"), inner, width)?,
        };
        Ok(Self { norms, attention: SelfAttention { qkv, out, heads, causal }, feed_forward })
    }
}

/// nanoGPT: pre-norm, without biases, the head tied to the token embedding.
struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    layers: Vec<Layer>,
    norm: LayerNorm,
}

impl Architecture for GptConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let Self { layers, heads, width } = *self;
        let kind: (MakeLinear, MakeNorm) = (Linear::without_bias, LayerNorm::without_bias);
        let layer =
            |i| Layer::new(&builder.pp("layers").pp(i), [width, heads, 4 * width], true, kind);
        Ok(Box::new(Gpt {
            tokens: Embedding::new(&builder.pp("tokens"), plan.outputs, width)?,
            positions: Embedding::new(&builder.pp("positions"), plan.input[0], width)?,
            layers: (0..layers).map(layer).collect::<Result<_>>()?,
            norm: LayerNorm::without_bias(&builder.pp("norm"), width)?,
        }))
    }
}

impl Model for Gpt {
    /// Tokens (b, t) -> logits (b t, vocabulary).
    fn forward(&self, tokens: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let t = tokens.dim(1)?;
        let positions = Tensor::arange(0, t as u32, tokens.device())?;
        let positions = self.positions.forward(&positions)?;
        let x = self.tokens.forward(tokens)?.broadcast_add(&positions)?;
        let logits = ops::chain(&x, |x| {
            let mut x = x.clone();
            for Layer { norms: [first, second], attention, feed_forward } in &self.layers {
                x = ops::add(&x, &attention.forward(&first.forward(&x)?, pass)?)?;
                x = ops::add(&x, &feed_forward.forward(&second.forward(&x)?, pass)?)?;
            }
            let head = self.tokens.weight().weight()?;
            ops::linear(&self.norm.forward(&x)?, &head, None, pass.precision)
        })?;
        logits.flatten_to(1)
    }
}

/// Liu et al. 2024: each series is a token; post-norm.
struct ITransformer {
    embed: Linear,
    layers: Vec<Layer>,
    norm: LayerNorm,
    head: Linear,
}

impl Architecture for ITransformerConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let Self { layers, heads, width, inner } = *self;
        let steps = plan.input[0];
        let kind: (MakeLinear, MakeNorm) = (Linear::new, LayerNorm::new);
        let layer = |i| Layer::new(&builder.pp("layers").pp(i), [width, heads, inner], false, kind);
        Ok(Box::new(ITransformer {
            embed: Linear::new(&builder.pp("embed"), steps, width)?,
            layers: (0..layers).map(layer).collect::<Result<_>>()?,
            norm: LayerNorm::new(&builder.pp("norm"), width)?,
            head: Linear::new(&builder.pp("head"), width, steps)?,
        }))
    }
}

impl Model for ITransformer {
    /// (b, time, series) -> a forecast as long, (b, time series).
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let windows = InstanceNorm::new(input, input.dim(2)?, Deviation::Population)?;
        let forecast = ops::chain(&windows.rows, |series| {
            let mut x = self.embed.forward(series, pass)?;
            for Layer { norms: [first, second], attention, feed_forward } in &self.layers {
                x = first.forward_sum(&x, &attention.forward(&x, pass)?)?;
                x = second.forward_sum(&x, &feed_forward.forward(&x, pass)?)?;
            }
            windows.undo(&self.head.forward(&self.norm.forward(&x)?, pass)?)
        })?;
        forecast.flatten(1, D::Minus1)
    }
}
