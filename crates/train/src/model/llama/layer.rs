//! One layer of a decoder: attention and a feed-forward part, as the family has them.

use candle_core::{Result, Tensor, bail};

use super::family::{Bias, Mlp as MlpKind, NormKind, QkNorm, Qkv};
use super::{HiddenAct, LlamaConfig};
use crate::nn::{
    self, Adapted, Builder, Dropout, ForwardContext, Init, LayerNorm, LoraConfig, Nonlinearity,
    RmsNorm,
};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Attention, Rope, ScoreBounds};

/// x + attention(x), then x + mlp(x), each with the norms that the family has before and after it;
/// or x + attention(x) + mlp(x).
pub(super) struct Layer {
    attention: SelfAttention,
    mlp: Mlp,
    before_attention: Option<Norm>,
    after_attention: Option<Norm>,
    before_mlp: Option<Norm>,
    after_mlp: Option<Norm>,
    /// Both parts see the same input.
    is_parallel: bool,
    residual_multiplier: Option<f64>,
    attention_dropout: Dropout,
    mlp_dropout: Dropout,
}

/// What layers of a model differ in.
pub(super) struct LayerKind {
    /// `None` = it does not turn its queries and keys.
    pub(super) rope: Option<Rope>,
    pub(super) window: Option<usize>,
}

impl Layer {
    pub(super) fn new(config: &LlamaConfig, builder: &Builder, kind: LayerKind) -> Result<Self> {
        let spec = config.family.spec();
        let lora = config.lora_config();
        let linear = Projections { config, lora: lora.as_ref() };
        let attention = builder.pp(spec.tensors.attention);
        let dropout = |name: &str| Dropout::new(&builder.pp(name), config.dropout);
        let attention_dropout = dropout("attention_dropout");
        let mlp_dropout = dropout("mlp_dropout");
        let attention = SelfAttention::new(&linear, &attention, kind)?;
        let mlp = Mlp::new(&linear, builder)?;
        let norm = |name: Option<&str>| {
            name.map(|name| Norm::new(config, &builder.pp(name), config.d_model)).transpose()
        };
        Ok(Self {
            attention,
            mlp,
            before_attention: norm(spec.norms.before_attention)?,
            after_attention: norm(spec.norms.after_attention)?,
            before_mlp: norm(spec.norms.before_mlp)?,
            after_mlp: norm(spec.norms.after_mlp)?,
            is_parallel: config.is_parallel(),
            residual_multiplier: config.residual_multiplier,
            attention_dropout,
            mlp_dropout,
        })
    }

    fn attended(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let y = self.attention.forward(&normed(self.before_attention.as_ref(), x)?, pass)?;
        let y = multiplied(&normed(self.after_attention.as_ref(), &y)?, self.residual_multiplier)?;
        self.attention_dropout.forward(&y, pass)
    }

    fn fed_forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let y = self.mlp.forward(&normed(self.before_mlp.as_ref(), x)?, pass)?;
        let y = multiplied(&normed(self.after_mlp.as_ref(), &y)?, self.residual_multiplier)?;
        self.mlp_dropout.forward(&y, pass)
    }

    pub(super) fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let normed = |graph: &mut Graph, norm: Option<&Norm>, x: &Value| match norm {
            Some(norm) => norm.onnx(graph, x),
            None => Ok(x.clone()),
        };
        let multiplied = |graph: &mut Graph, x: &Value| match self.residual_multiplier {
            Some(factor) => graph.scaled(x, factor),
            None => x.clone(),
        };
        let y = normed(graph, self.before_attention.as_ref(), x)?;
        let y = self.attention.onnx(graph, &y)?;
        let y = normed(graph, self.after_attention.as_ref(), &y)?;
        let y = multiplied(graph, &y);
        let attended = graph.add(x, &y);
        let x = if self.is_parallel { x } else { &attended };
        let y = normed(graph, self.before_mlp.as_ref(), x)?;
        let y = self.mlp.onnx(graph, &y)?;
        let y = normed(graph, self.after_mlp.as_ref(), &y)?;
        let y = multiplied(graph, &y);
        Ok(graph.add(&attended, &y))
    }
}

impl nn::Block for Layer {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let attended = ops::add(x, &self.attended(x, pass)?)?;
        let seen = if self.is_parallel { x } else { &attended };
        ops::add(&attended, &self.fed_forward(seen, pass)?)
    }
}

/// `x` after a norm, if there is one.
fn normed(norm: Option<&Norm>, x: &Tensor) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(x),
        None => Ok(x.clone()),
    }
}

/// `x` times a factor, if there is one.
pub(super) fn multiplied(x: &Tensor, factor: Option<f64>) -> Result<Tensor> {
    match factor {
        Some(factor) => ops::scale(x, factor),
        None => Ok(x.clone()),
    }
}

/// A norm of the family's kind.
pub(super) enum Norm {
    Rms(RmsNorm),
    Layer(LayerNorm),
}

impl Norm {
    pub(super) fn new(config: &LlamaConfig, builder: &Builder, width: usize) -> Result<Self> {
        let eps = config.norm_eps;
        Ok(match config.family.spec().norm {
            NormKind::Rms => Self::Rms(RmsNorm::new(builder, width, eps)?),
            NormKind::RmsPlusOne => Self::Rms(RmsNorm::plus_one(builder, width, eps)?),
            NormKind::Layer => Self::Layer(LayerNorm::new(builder, width)?.with_eps(eps)),
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rms(norm) => norm.forward(x),
            Self::Layer(norm) => norm.forward(x),
        }
    }

    pub(super) fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        match self {
            Self::Rms(norm) => norm.onnx(graph, x),
            Self::Layer(norm) => norm.onnx(graph, x),
        }
    }
}

/// Makes linear layers and their adapters.
struct Projections<'a> {
    config: &'a LlamaConfig,
    lora: Option<&'a LoraConfig>,
}

impl Projections<'_> {
    /// A linear layer (in, out).
    fn of(&self, builder: &Builder, sizes: [usize; 2], has_bias: bool) -> Result<Adapted> {
        let bias = has_bias.then_some(Init::Constant(0.0));
        Adapted::with_bias(builder, sizes, Init::Normal(self.config.init_std), bias, self.lora)
    }
}

/// Queries, keys and values of what is attended to.
enum QkvProjection {
    Separate([Adapted; 3]),
    /// All queries, then all keys, then all values, with these widths.
    Fused(Adapted, [usize; 3]),
    /// Those of each head of so many features.
    FusedByHead(Adapted, usize),
}

impl QkvProjection {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<[Tensor; 3]> {
        Ok(match self {
            Self::Separate([q, k, v]) => {
                [q.forward(x, pass)?, k.forward(x, pass)?, v.forward(x, pass)?]
            }
            Self::Fused(qkv, [q, k, v]) => {
                let qkv = qkv.forward(x, pass)?;
                let part = |first, count| ops::narrow(&qkv, 2, first, count);
                [part(0, *q)?, part(*q, *k)?, part(q + k, *v)?]
            }
            Self::FusedByHead(qkv, d) => {
                let qkv = qkv.forward(x, pass)?;
                let part = |i| ops::narrow_groups(&qkv, 3 * d, i * d, *d);
                [part(0)?, part(1)?, part(2)?]
            }
        })
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<[Value; 3]> {
        Ok(match self {
            Self::Separate([q, k, v]) => [q.onnx(graph, x)?, k.onnx(graph, x)?, v.onnx(graph, x)?],
            Self::Fused(qkv, [q, k, v]) => {
                let qkv = qkv.onnx(graph, x)?;
                [(0, *q), (*q, *k), (q + k, *v)]
                    .map(|(first, count)| graph.narrowed(&qkv, 2, first, count))
            }
            Self::FusedByHead(qkv, d) => {
                let qkv = qkv.onnx(graph, x)?;
                let width = qkv.features() / 3;
                let heads = width / d;
                let groups = graph.reshaped(&qkv, &[0, 0, heads as i64, 3 * *d as i64]);
                [0, 1, 2].map(|i| {
                    let part = graph.narrowed(&groups, 3, i * d, *d);
                    graph.reshaped(&part, &[0, 0, width as i64])
                })
            }
        })
    }
}

/// Each head of keys and values serves `heads / kv_heads` heads of queries.
struct SelfAttention {
    qkv: QkvProjection,
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    output: Adapted,
    heads: usize,
    kv_heads: usize,
    rope: Option<Rope>,
    bounds: ScoreBounds,
    /// Factor of the queries, if scores are not divided by the root of a head's width.
    query_scale: Option<f64>,
    /// Dropout of the attention probabilities.
    dropout: Dropout,
}

impl SelfAttention {
    fn new(linear: &Projections<'_>, builder: &Builder, kind: LayerKind) -> Result<Self> {
        let config = linear.config;
        let spec = config.family.spec();
        let heads = config.n_heads;
        let kv_heads = config.n_kv_heads.unwrap_or(heads);
        if heads == 0 || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            bail!("`n_heads` = {heads} cannot share `n_kv_heads` = {kv_heads}");
        }
        let d = config.head_width()?;
        let width = config.d_model;
        let (queries, keys) = (heads * d, kv_heads * d);
        let has_bias = match spec.attention_bias {
            Bias::Never => false,
            Bias::Always | Bias::Qkv => true,
            Bias::Optional(usual) => config.attention_bias.unwrap_or(usual),
        };
        let layer = |name: &str, outputs| linear.of(&builder.pp(name), [width, outputs], has_bias);
        let qkv = match spec.qkv {
            Qkv::Separate => QkvProjection::Separate([
                layer("q_proj", queries)?,
                layer("k_proj", keys)?,
                layer("v_proj", keys)?,
            ]),
            Qkv::Fused(name) => {
                QkvProjection::Fused(layer(name, queries + 2 * keys)?, [queries, keys, keys])
            }
            Qkv::FusedByHead(name) => QkvProjection::FusedByHead(layer(name, 3 * queries)?, d),
        };
        let has_output_bias = has_bias && spec.attention_bias != Bias::Qkv;
        let output = builder.pp(spec.tensors.output);
        let output = linear.of(&output, [queries, width], has_output_bias)?;
        let qk_norm = |name: &str, all| {
            let over = spec.qk_norm.map(|over| if over == QkNorm::Head { d } else { all });
            over.map(|width| Norm::new(config, &builder.pp(name), width)).transpose()
        };
        Ok(Self {
            qkv,
            q_norm: qk_norm("q_norm", queries)?,
            k_norm: qk_norm("k_norm", keys)?,
            output,
            heads,
            kv_heads,
            rope: kind.rope,
            bounds: ScoreBounds { window: kind.window, softcap: config.attn_logit_softcapping },
            query_scale: config.score_factor().map(|factor| factor * (d as f64).sqrt()),
            dropout: Dropout::new(builder, config.attention_dropout),
        })
    }

    /// (n, t, width) -> (n, t, width).
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let texts = pass.segments.as_ref();
        let [mut q, mut k, v] = self.qkv.forward(x, pass)?;
        q = normed(self.q_norm.as_ref(), &q)?;
        k = normed(self.k_norm.as_ref(), &k)?;
        if let Some(rope) = &self.rope {
            q = ops::rotary_in(texts, &q, self.heads, rope)?;
            k = ops::rotary_in(texts, &k, self.kv_heads, rope)?;
        }
        let q = multiplied(&q, self.query_scale)?;
        let times = self.heads / self.kv_heads;
        let k = ops::repeat_heads(&k, self.kv_heads, times)?;
        let v = ops::repeat_heads(&v, self.kv_heads, times)?;
        let (precision, dropout) = (pass.precision, self.dropout.drawn(pass));
        let attention = Attention { heads: self.heads, causal: true, dropout, precision };
        let y = ops::attention_bounded(texts, [&q, &k, &v], attention, self.bounds)?;
        self.output.forward(&y, pass)
    }

    /// [`SelfAttention::forward`] in a graph of ONNX.
    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let (heads, kv_heads) = (self.heads, self.kv_heads);
        let [mut q, mut k, v] = self.qkv.onnx(graph, x)?;
        if let Some(norm) = &self.q_norm {
            q = norm.onnx(graph, &q)?;
        }
        if let Some(norm) = &self.k_norm {
            k = norm.onnx(graph, &k)?;
        }
        if let Some(rope) = &self.rope {
            let [cosines, sines] = rope.onnx(graph);
            q = graph.rotary(&q, heads, [&cosines, &sines]);
            k = graph.rotary(&k, kv_heads, [&cosines, &sines]);
        }
        if let Some(factor) = self.query_scale {
            q = graph.scaled(&q, factor);
        }
        let [k, v] = [k, v].map(|part| graph.heads_repeated(&part, kv_heads, heads));
        let ScoreBounds { window, softcap } = self.bounds;
        let y = graph.attention_bounded([&q, &k, &v], heads, window, softcap);
        self.output.onnx(graph, &y)
    }
}

/// The feed-forward part.
struct Mlp {
    kind: MlpProjection,
    act: Nonlinearity,
    down: Adapted,
}

enum MlpProjection {
    Gated { gate: Adapted, up: Adapted },
    FusedGate(Adapted),
    Plain(Adapted),
}

impl Mlp {
    fn new(linear: &Projections<'_>, builder: &Builder) -> Result<Self> {
        let config = linear.config;
        let spec = config.family.spec();
        let (width, inner) = (config.d_model, config.d_ff);
        let has_bias = match spec.mlp_bias {
            Bias::Never | Bias::Qkv => false,
            Bias::Always => true,
            Bias::Optional(usual) => config.mlp_bias.unwrap_or(usual),
        };
        let layer = |name: &str, sizes| linear.of(&builder.pp(name), sizes, has_bias);
        let (kind, down) = match spec.mlp {
            MlpKind::Gated { gate, up, down } => {
                let gate = layer(gate, [width, inner])?;
                (MlpProjection::Gated { gate, up: layer(up, [width, inner])? }, down)
            }
            MlpKind::FusedGate { gate_up, down } => {
                (MlpProjection::FusedGate(layer(gate_up, [width, 2 * inner])?), down)
            }
            MlpKind::Plain { up, down } => (MlpProjection::Plain(layer(up, [width, inner])?), down),
        };
        let act = match config.hidden_act.unwrap_or(spec.hidden_act) {
            HiddenAct::Silu => Nonlinearity::Silu,
            HiddenAct::Gelu => Nonlinearity::Gelu,
            HiddenAct::GeluTanh => Nonlinearity::GeluTanh,
            HiddenAct::Relu => Nonlinearity::Relu,
        };
        Ok(Self { kind, act, down: layer(down, [inner, width])? })
    }

    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let inner = match &self.kind {
            MlpProjection::Gated { gate, up } => {
                let gate = self.act.forward(&gate.forward(x, pass)?)?;
                ops::product(&gate, &up.forward(x, pass)?)?
            }
            MlpProjection::FusedGate(gate_up) => {
                let both = gate_up.forward(x, pass)?;
                let inner = both.dim(2)? / 2;
                let gate = self.act.forward(&ops::narrow(&both, 2, 0, inner)?)?;
                ops::product(&gate, &ops::narrow(&both, 2, inner, inner)?)?
            }
            MlpProjection::Plain(up) => self.act.forward(&up.forward(x, pass)?)?,
        };
        self.down.forward(&inner, pass)
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let inner = match &self.kind {
            MlpProjection::Gated { gate, up } => {
                let gate = gate.onnx(graph, x)?;
                let gate = self.act.onnx(graph, &gate);
                let up = up.onnx(graph, x)?;
                graph.mul(&gate, &up)
            }
            MlpProjection::FusedGate(gate_up) => {
                let both = gate_up.onnx(graph, x)?;
                let inner = both.features() / 2;
                let gate = graph.narrowed(&both, 2, 0, inner);
                let gate = self.act.onnx(graph, &gate);
                let up = graph.narrowed(&both, 2, inner, inner);
                graph.mul(&gate, &up)
            }
            MlpProjection::Plain(up) => {
                let up = up.onnx(graph, x)?;
                self.act.onnx(graph, &up)
            }
        };
        self.down.onnx(graph, &inner)
    }
}
