//! Llama (Touvron et al., 2023, <https://arxiv.org/abs/2302.13971>) as `HuggingFace` writes it: token embedding, pre-norm
//! blocks of causal attention with rotary positions and shared heads of keys and values (Ainslie et al., 2023,
//! <https://arxiv.org/abs/2305.13245>) and a gated feed-forward part, and logits by a table of their own or the embedding.
//!
//! Keys: `model.embed_tokens`, `model.layers.{i}.{self_attn.{q,k,v,o}_proj,mlp.{gate,up,down}_proj,input_layernorm,
//! post_attention_layernorm}`, `model.norm`, `lm_head`; tied, `lm_head.weight` is another name of the embedding. With
//! adapters all these are frozen, and `{...}_proj.lora_{A,B}` are trained.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor, bail};

use super::Model;
use crate::nn::{
    self, Adapted, Builder, Embedding, ForwardContext, Init, Linear, LoraConfig, RmsNorm,
};
use crate::ops::{self, Attention, Rope};
use crate::plan::{LlamaPlan, LoraPlan, ModelPlan};

pub(super) fn build(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    let ([_], [_]) = (&plan.input[..], &plan.target[..]) else {
        bail!("it predicts the next token of a text: use `data.name = \"tokens\"`")
    };
    let builder = if plan.lora.is_some() { &builder.frozen() } else { builder };
    let (sizes, llama, root) = (&plan.sequence, plan.llama, builder.pp("model"));
    let init = Init::Normal(llama.init_std);
    let table = root.pp("embed_tokens");
    let embedding = Embedding::with_init(&table, plan.outputs, sizes.d_model, init)?;
    let layers = root.pp("layers");
    let layer = |i| Layer::new(plan, &layers.pp(i)).map(Arc::new);
    let layers = (0..sizes.n_layers).map(layer).collect::<Result<_>>()?;
    let norm = RmsNorm::new(&root.pp("norm"), sizes.d_model, llama.norm_eps)?;
    let head = if llama.tied {
        builder.alias("lm_head.weight", embedding.weight())?;
        None
    } else {
        let head = builder.pp("lm_head");
        Some(Linear::with_init(&head, sizes.d_model, plan.outputs, init, None)?)
    };
    Ok(Box::new(Llama { embedding, layers, norm, head }))
}

struct Llama {
    embedding: Embedding,
    layers: Vec<Arc<Layer>>,
    norm: RmsNorm,
    /// `None` = the embedding's table.
    head: Option<Linear>,
}

impl Model for Llama {
    /// Tokens (n, t) -> logits (n, t, vocabulary).
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = self.embedding.forward(&input.to_dtype(DType::U32)?)?;
        let x = self.layers.iter().try_fold(x, |x, layer| nn::run_block(layer, &x, pass))?;
        let x = self.norm.forward(&x)?;
        match &self.head {
            Some(head) => head.forward(&x, pass),
            None => ops::linear(&x, &self.embedding.weight().weight()?, None, pass.precision),
        }
    }
}

/// x + attention(norm x), then x + mlp(norm x).
struct Layer {
    input_norm: RmsNorm,
    attention: SelfAttention,
    inner_norm: RmsNorm,
    gate: Adapted,
    up: Adapted,
    down: Adapted,
}

impl Layer {
    fn new(plan: &ModelPlan, builder: &Builder) -> Result<Self> {
        let (width, inner) = (plan.sequence.d_model, plan.sequence.d_ff);
        let attention = SelfAttention::new(plan, &builder.pp("self_attn"))?;
        let mlp = builder.pp("mlp");
        let linear = |name, inputs, outputs| projection(plan, &mlp.pp(name), [inputs, outputs]);
        let norm = |name| RmsNorm::new(&builder.pp(name), width, plan.llama.norm_eps);
        Ok(Self {
            attention,
            gate: linear("gate_proj", width, inner)?,
            up: linear("up_proj", width, inner)?,
            down: linear("down_proj", inner, width)?,
            input_norm: norm("input_layernorm")?,
            inner_norm: norm("post_attention_layernorm")?,
        })
    }
}

impl nn::Block for Layer {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = (x + self.attention.forward(&self.input_norm.forward(x)?, pass)?)?;
        let inner = self.inner_norm.forward(&x)?;
        let gate = ops::silu(&self.gate.forward(&inner, pass)?)?;
        let inner = (gate * self.up.forward(&inner, pass)?)?;
        &x + self.down.forward(&inner, pass)?
    }
}

/// A linear layer (in, out) without a bias, and its adapter.
fn projection(plan: &ModelPlan, builder: &Builder, sizes: [usize; 2]) -> Result<Adapted> {
    let lora = plan.lora.as_ref().map(LoraConfig::from);
    Adapted::new(builder, sizes, Init::Normal(plan.llama.init_std), lora.as_ref())
}

impl From<&LoraPlan> for LoraConfig {
    fn from(plan: &LoraPlan) -> Self {
        let LoraPlan { r, alpha, dropout, ref targets, .. } = *plan;
        Self { r, alpha, dropout, targets: targets.clone() }
    }
}

/// Each head of keys and values serves `heads / kv_heads` heads of queries.
struct SelfAttention {
    q: Adapted,
    k: Adapted,
    v: Adapted,
    o: Adapted,
    heads: usize,
    kv_heads: usize,
    rope: Rope,
}

impl SelfAttention {
    fn new(plan: &ModelPlan, builder: &Builder) -> Result<Self> {
        let (width, heads) = (plan.sequence.d_model, plan.sequence.n_heads);
        let LlamaPlan { n_kv_heads: kv_heads, rope_theta: theta, rope_scaling: scaling, .. } =
            plan.llama;
        if heads == 0 || !width.is_multiple_of(2 * heads) {
            bail!("`d_model` = {width} cannot be divided into even `n_heads` = {heads}");
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            bail!("`n_heads` = {heads} cannot share `n_kv_heads` = {kv_heads}");
        }
        let shared = width / heads * kv_heads;
        let linear = |name, outputs| projection(plan, &builder.pp(name), [width, outputs]);
        Ok(Self {
            q: linear("q_proj", width)?,
            k: linear("k_proj", shared)?,
            v: linear("v_proj", shared)?,
            o: linear("o_proj", width)?,
            heads,
            kv_heads,
            rope: Rope { theta, scaling },
        })
    }

    /// (n, t, width) -> (n, t, width).
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let q = ops::rotary(&self.q.forward(x, pass)?, self.heads, self.rope)?;
        let k = ops::rotary(&self.k.forward(x, pass)?, self.kv_heads, self.rope)?;
        let (k, v) = (self.for_each_query(&k)?, self.for_each_query(&self.v.forward(x, pass)?)?);
        let precision = pass.precision;
        let attention = Attention { heads: self.heads, causal: true, dropout: None, precision };
        self.o.forward(&ops::attention(&q, &k, &v, attention)?, pass)
    }

    /// (n, t, `kv_heads` d) -> (n, t, heads d): each head as often as it is used.
    fn for_each_query(&self, x: &Tensor) -> Result<Tensor> {
        let times = self.heads / self.kv_heads;
        if times == 1 {
            return Ok(x.clone());
        }
        let (n, t, width) = x.dims3()?;
        let d = width / self.kv_heads;
        let x = x.reshape((n, t, self.kv_heads, 1, d))?;
        let x = x.broadcast_as((n, t, self.kv_heads, times, d))?;
        x.reshape((n, t, self.heads * d))
    }
}
