//! Llama (Touvron et al., 2023, <https://arxiv.org/abs/2302.13971>) as `HuggingFace` writes it:
//! token embedding, pre-norm blocks of causal attention with rotary positions and shared heads of
//! keys and values (Ainslie et al., 2023, <https://arxiv.org/abs/2305.13245>) and a gated
//! feed-forward part, and logits by a table of their own or the embedding.
//!
//! Keys: `model.embed_tokens`,
//! `model.layers.{i}.{self_attn.{q,k,v,o}_proj,mlp.{gate,up,down}_proj,input_layernorm,
//! post_attention_layernorm}`, `model.norm`, `lm_head`; tied, `lm_head.weight` is another name of
//! the embedding. With adapters all these are frozen, and `{...}_proj.lora_{A,B}` are trained.

mod rope;

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::hub::{self, llama as files};
use super::names::{Library, Naming};
use super::pretrained::PretrainedError;
use super::{Architecture, Head, InferredOptions, Lora, Model, peft};
use crate::config::kind::{Kind, OptionConflict};
use crate::nn::{
    self, Adapted, Builder, Dropout, Embedding, ForwardContext, Init, Linear, Nonlinearity, RmsNorm,
};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Attention, Rope};
use crate::plan::{Modality, ModelPlan};

pub use rope::{RopeScaling, RopeType};

/// Llama and Mistral, as in Hugging Face transformers: rotary embeddings, grouped-query attention
/// (GQA), SwiGLU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LlamaConfig {
    /// width, a multiple of `n_heads`.
    #[schemars(range(min = 1, max = 65536))]
    pub d_model: usize,
    /// number of attention heads.
    #[schemars(range(min = 1, max = 1024))]
    pub n_heads: usize,
    /// hidden size of the feed-forward network.
    #[schemars(range(min = 1, max = 262_144))]
    pub d_ff: usize,
    /// number of layers.
    #[schemars(range(min = 1, max = 1024))]
    pub n_layers: usize,
    /// number of key/value heads (GQA), each shared by `n_heads / n_kv_heads` query heads. Default:
    /// `n_heads`.
    #[schemars(range(min = 1, max = 1024), example = 4)]
    pub n_kv_heads: Option<usize>,
    /// base of the rotary embedding.
    #[schemars(range(min = 1.0))]
    pub rope_theta: f64,
    /// RoPE scaling, as in the `rope_parameters` or `rope_scaling` of a config.json.
    pub rope_scaling: RopeScaling,
    /// added to the mean square in norms.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub norm_eps: f64,
    /// whether the output layer shares the token embedding.
    pub tie_word_embeddings: bool,
    /// dropout of the attention probabilities in training.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub attention_dropout: f64,
    /// standard deviation of initial weights.
    #[schemars(range(min = 0.0))]
    pub init_std: f64,
    /// low-rank adapters (LoRA), trained while the base weights are frozen, without gradients and
    /// optimizer state. Base weights of a file stay there, in its type, and checkpoints only name
    /// it. `ddprun checkpoint export --peft` writes the adapters in PEFT's format, and `--merge`
    /// the weights with the adapters merged in.
    pub lora: Lora,
}

impl Default for LlamaConfig {
    /// The shape of GPT-2's smallest, with the first Llama's numbers.
    fn default() -> Self {
        Self {
            d_model: 768,
            n_heads: 12,
            d_ff: 2048,
            n_layers: 12,
            n_kv_heads: None,
            rope_theta: 1e4,
            rope_scaling: RopeScaling::default(),
            norm_eps: 1e-5,
            tie_word_embeddings: false,
            attention_dropout: 0.0,
            init_std: 0.02,
            lora: Lora::default(),
        }
    }
}

impl Kind for LlamaConfig {
    const NAME: &'static str = "llama";

    fn check(&self) -> Vec<OptionConflict> {
        [self.rope_scaling.check(), self.lora.check()].concat()
    }
}

impl Architecture for LlamaConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let ([_], [_]) = (&plan.input[..], &plan.target[..]) else {
            bail!("it predicts the next token of a text: use `data.name = \"tokens\"`")
        };
        let builder = &self.lora.base(builder);
        let root = builder.pp("model");
        let init = Init::Normal(self.init_std);
        let table = root.pp("embed_tokens");
        let embedding = Embedding::with_init(&table, plan.outputs, self.d_model, init)?;
        let layers = root.pp("layers");
        let layer = |i| Layer::new(self, &layers.pp(i)).map(Arc::new);
        let layers = (0..self.n_layers).map(layer).collect::<Result<_>>()?;
        let norm = RmsNorm::new(&root.pp("norm"), self.d_model, self.norm_eps)?;
        let head = if self.tie_word_embeddings {
            builder.alias("lm_head.weight", embedding.weight())?;
            None
        } else {
            let head = builder.pp("lm_head");
            Some(Linear::with_init(&head, self.d_model, plan.outputs, init, None)?)
        };
        Ok(Box::new(Llama { embedding, layers, norm, head }))
    }

    fn ignores_padding(&self) -> bool {
        true
    }

    fn keeps_texts_apart(&self) -> bool {
        true
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Text]
    }

    fn head(&self) -> Head {
        Head::Keys(&["lm_head."])
    }

    fn library(&self) -> Option<Library> {
        Some(Library::Transformers)
    }

    fn named_as(&self, plan: &ModelPlan, library: Library) -> std::result::Result<Naming, String> {
        match library {
            Library::Transformers => Ok(Naming::with_config(files::config_json(self, plan))),
            Library::Timm | Library::Torchvision => Err(Naming::unknown()),
        }
    }

    fn adapters(&self) -> Option<&Path> {
        self.lora.adapters.as_deref()
    }

    fn complete(
        &self,
        pretrained: Option<&Path>,
        seq_len: Option<u32>,
    ) -> std::result::Result<InferredOptions, PretrainedError> {
        let mut found = hub::complete(Self::NAME, "a Llama", files::read, pretrained, seq_len)?;
        found.options.extend(peft::complete(&self.lora)?);
        Ok(found)
    }
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
        ops::chain(&x, |x| {
            let layers = &self.layers;
            let x = layers.iter().try_fold(x.clone(), |x, layer| nn::run_block(layer, &x, pass))?;
            let x = self.norm.forward(&x)?;
            match &self.head {
                Some(head) => head.forward(&x, pass),
                None => ops::linear(&x, &self.embedding.weight().weight()?, None, pass.precision),
            }
        })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = self.embedding.onnx(graph, input)?;
        let x = self.layers.iter().try_fold(x, |x, layer| layer.onnx(graph, &x))?;
        let x = self.norm.onnx(graph, &x)?;
        if let Some(head) = &self.head {
            return head.onnx(graph, &x);
        }
        let table = self.embedding.weight().onnx(graph)?;
        Ok(graph.linear(&x, &table, None))
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
    fn new(config: &LlamaConfig, builder: &Builder) -> Result<Self> {
        let width = config.d_model;
        let inner = config.d_ff;
        let attention = SelfAttention::new(config, &builder.pp("self_attn"))?;
        let mlp = builder.pp("mlp");
        let linear = |name, inputs, outputs| projection(config, &mlp.pp(name), [inputs, outputs]);
        let norm = |name| RmsNorm::new(&builder.pp(name), width, config.norm_eps);
        Ok(Self {
            attention,
            gate: linear("gate_proj", width, inner)?,
            up: linear("up_proj", width, inner)?,
            down: linear("down_proj", inner, width)?,
            input_norm: norm("input_layernorm")?,
            inner_norm: norm("post_attention_layernorm")?,
        })
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let y = self.input_norm.onnx(graph, x)?;
        let y = self.attention.onnx(graph, &y)?;
        let x = graph.add(x, &y);
        let inner = self.inner_norm.onnx(graph, &x)?;
        let gate = self.gate.onnx(graph, &inner)?;
        let gate = Nonlinearity::Silu.onnx(graph, &gate);
        let up = self.up.onnx(graph, &inner)?;
        let inner = graph.mul(&gate, &up);
        let y = self.down.onnx(graph, &inner)?;
        Ok(graph.add(&x, &y))
    }
}

impl nn::Block for Layer {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = ops::add(x, &self.attention.forward(&self.input_norm.forward(x)?, pass)?)?;
        let inner = self.inner_norm.forward(&x)?;
        let gate = ops::silu(&self.gate.forward(&inner, pass)?)?;
        let inner = ops::product(&gate, &self.up.forward(&inner, pass)?)?;
        ops::add(&x, &self.down.forward(&inner, pass)?)
    }
}

/// A linear layer (in, out) without a bias, and its adapter.
fn projection(config: &LlamaConfig, builder: &Builder, sizes: [usize; 2]) -> Result<Adapted> {
    let lora = config.lora.resolved();
    Adapted::new(builder, sizes, Init::Normal(config.init_std), lora.as_ref())
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
    /// Dropout of the attention probabilities.
    dropout: Dropout,
}

impl SelfAttention {
    fn new(config: &LlamaConfig, builder: &Builder) -> Result<Self> {
        let width = config.d_model;
        let heads = config.n_heads;
        let kv_heads = config.n_kv_heads.unwrap_or(heads);
        if heads == 0 || !width.is_multiple_of(2 * heads) {
            bail!("`d_model` = {width} cannot be divided into even `n_heads` = {heads}");
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            bail!("`n_heads` = {heads} cannot share `n_kv_heads` = {kv_heads}");
        }
        let shared = width / heads * kv_heads;
        let linear = |name, outputs| projection(config, &builder.pp(name), [width, outputs]);
        Ok(Self {
            q: linear("q_proj", width)?,
            k: linear("k_proj", shared)?,
            v: linear("v_proj", shared)?,
            o: linear("o_proj", width)?,
            heads,
            kv_heads,
            rope: Rope { theta: config.rope_theta, scaling: config.rope_scaling.resolved() },
            dropout: Dropout::new(builder, config.attention_dropout),
        })
    }

    /// (n, t, width) -> (n, t, width).
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let texts = pass.segments.as_ref();
        let q = ops::rotary_in(texts, &self.q.forward(x, pass)?, self.heads, self.rope)?;
        let k = ops::rotary_in(texts, &self.k.forward(x, pass)?, self.kv_heads, self.rope)?;
        let times = self.heads / self.kv_heads;
        let k = ops::repeat_heads(&k, self.kv_heads, times)?;
        let v = ops::repeat_heads(&self.v.forward(x, pass)?, self.kv_heads, times)?;
        let (precision, dropout) = (pass.precision, self.dropout.drawn(pass));
        let attention = Attention { heads: self.heads, causal: true, dropout, precision };
        self.o.forward(&ops::attention_in(texts, [&q, &k, &v], attention)?, pass)
    }

    /// [`SelfAttention::forward`] in a graph of ONNX.
    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let heads = self.heads;
        let kv_heads = self.kv_heads;
        let [cosines, sines] = self.rope.onnx(graph, x.features() / heads);
        let q = self.q.onnx(graph, x)?;
        let k = self.k.onnx(graph, x)?;
        let v = self.v.onnx(graph, x)?;
        let q = graph.rotary(&q, heads, [&cosines, &sines]);
        let k = graph.rotary(&k, kv_heads, [&cosines, &sines]);
        let [k, v] = [k, v].map(|part| graph.heads_repeated(&part, kv_heads, heads));
        let y = graph.attention([&q, &k, &v], heads, true);
        self.o.onnx(graph, &y)
    }
}
