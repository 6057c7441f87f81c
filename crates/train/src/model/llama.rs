//! Llama (Touvron et al., 2023, <https://arxiv.org/abs/2302.13971>) and the families of language
//! models that came after it, as `HuggingFace` writes them: token embedding, blocks of causal
//! attention with shared heads of keys and values (Ainslie et al., 2023,
//! <https://arxiv.org/abs/2305.13245>) and a feed-forward part, and logits by a table of their own
//! or the embedding.
//!
//! What the members of a family share is an entry in `families`; what differs among them, such as
//! sizes, is an option. A Llama's keys: `model.embed_tokens`,
//! `model.layers.{i}.{self_attn.{q,k,v,o}_proj,mlp.{gate,up,down}_proj,input_layernorm,
//! post_attention_layernorm}`, `model.norm`, `lm_head`; tied, `lm_head.weight` is another name of
//! the embedding. With adapters all these are frozen, and `{...}_proj.lora_{A,B}` are trained.

mod families;
pub(super) mod family;
mod layer;
mod rope;

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::hub::{self, llama as files};
use super::names::{Library, Naming};
use super::pretrained::PretrainedError;
use super::{Architecture, Head, InferredOptions, Lora, Model, peft};
use crate::config::kind::{Kind, OptionConflict};
use crate::nn::{self, Builder, Embedding, ForwardContext, Init, Linear, LoraConfig};
use crate::onnx::{Graph, Value};
use crate::ops;
use crate::plan::{Modality, ModelPlan};
use family::Positions;
use layer::{Layer, LayerKind, Norm, multiplied};
use rope::RopeSizes;

pub use families::LlamaFamily;
pub use rope::{RopeScaling, RopeType};

/// Llama and other language models of Hugging Face transformers: Mistral, Qwen 2 and 3, Gemma 2 and
/// 3, Phi-3, `SmolLM3`, `OLMo` 2, Granite, GPT-NeoX, OPT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LlamaConfig {
    /// the family, by its `model_type` in transformers; with pretrained weights that of their
    /// config.json.
    pub family: LlamaFamily,
    /// width, a multiple of `n_heads` unless `head_dim` is given.
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
    /// features of a head. Default: `d_model / n_heads`.
    #[schemars(range(min = 1, max = 65536), example = 128)]
    pub head_dim: Option<usize>,
    /// biases in the linear layers of the attention, where the family has a choice.
    #[schemars(example = true)]
    pub attention_bias: Option<bool>,
    /// biases in the feed-forward network, where the family has a choice.
    #[schemars(example = true)]
    pub mlp_bias: Option<bool>,
    /// activation of the feed-forward network: "silu", "gelu", `gelu_tanh` or "relu". Default: the
    /// family's.
    #[schemars(with = "HiddenAct", example = HiddenAct::GeluTanh)]
    pub hidden_act: Option<HiddenAct>,
    /// tokens that a token attends to in layers with a sliding window: itself and those before it.
    #[schemars(range(min = 1, max = 1_073_741_824), example = 4096)]
    pub sliding_window: Option<usize>,
    /// which layers have the sliding window: `full_attention` or `sliding_attention` for each.
    /// Default: all, if `sliding_window` is given.
    #[schemars(with = "Vec<LayerType>", example = [LayerType::SlidingAttention, LayerType::FullAttention])]
    pub layer_types: Option<Vec<LayerType>>,
    /// smollm3: 1 for each layer that has rotary positions, 0 for each without. Default: all have.
    #[schemars(with = "Vec<u8>", example = [1, 1, 1, 0])]
    pub no_rope_layers: Option<Vec<u8>>,
    /// base of the rotary embedding.
    #[schemars(range(min = 1.0))]
    pub rope_theta: f64,
    /// `gemma3_text`: base of the rotary embedding in layers with a sliding window, without scaling.
    /// Default: `rope_theta`.
    #[schemars(range(min = 1.0), example = 10000.0)]
    pub rope_local_base_freq: Option<f64>,
    /// RoPE scaling, as in the `rope_parameters` or `rope_scaling` of a config.json.
    pub rope_scaling: RopeScaling,
    /// phi3, `gpt_neox`: share of a head's features that turn with the position. Default: 1.
    #[schemars(range(min = 0.0, max = 1.0), example = 0.25)]
    pub partial_rotary_factor: Option<f64>,
    /// longest context that the model is made for, which "dynamic" and "longrope" scaling count
    /// with; opt: rows of its table of positions. Default: `data.seq_len`.
    #[schemars(range(min = 1, max = 1_073_741_824), example = 32768)]
    pub max_position_embeddings: Option<usize>,
    /// gemma: scores are divided by its square root. Default: features of a head.
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 256.0)]
    pub query_pre_attn_scalar: Option<f64>,
    /// granite: scores are multiplied by it. Default: 1 over the square root of a head's features.
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 0.25)]
    pub attention_multiplier: Option<f64>,
    /// gemma: scores s become c tanh(s / c).
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 50.0)]
    pub attn_logit_softcapping: Option<f64>,
    /// gemma: logits x become c tanh(x / c).
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 30.0)]
    pub final_logit_softcapping: Option<f64>,
    /// granite: factor of the embeddings.
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 12.0)]
    pub embedding_multiplier: Option<f64>,
    /// granite: factor of what each part of a layer adds.
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 0.22)]
    pub residual_multiplier: Option<f64>,
    /// granite: logits are divided by it.
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 8.0)]
    pub logits_scaling: Option<f64>,
    /// `gpt_neox`: whether attention and feed-forward network of a layer see the same input.
    /// Default: true.
    #[schemars(example = false)]
    pub use_parallel_residual: Option<bool>,
    /// added to the mean square in norms.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub norm_eps: f64,
    /// whether the output layer shares the token embedding.
    pub tie_word_embeddings: bool,
    /// take pretrained weights for fewer tokens than the vocabulary has: the new rows of embedding
    /// and output layer begin as the mean of the others, as in transformers. Adapters leave them so
    /// unless `lora.modules_to_save` names both layers.
    pub resize_embeddings: bool,
    /// dropout of the attention probabilities in training.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub attention_dropout: f64,
    /// opt: dropout after each part of a layer in training.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub dropout: f64,
    /// standard deviation of initial weights.
    #[schemars(range(min = 0.0))]
    pub init_std: f64,
    /// low-rank adapters (LoRA), trained while the base weights are frozen, without gradients and
    /// optimizer state. Base weights of a file stay there, in its type, and checkpoints only name
    /// it. `ddprun checkpoint export --peft` writes the adapters in PEFT's format, and `--merge`
    /// the weights with the adapters merged in.
    pub lora: Lora,
}

/// Activations of feed-forward networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HiddenAct {
    /// x sigmoid(x).
    Silu,
    /// With the normal distribution function.
    Gelu,
    /// Its approximation by the tangent.
    GeluTanh,
    /// max(x, 0).
    Relu,
}

/// What a layer attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    /// All tokens before.
    FullAttention,
    /// The last ones.
    SlidingAttention,
}

impl Default for LlamaConfig {
    /// The shape of GPT-2's smallest, with the first Llama's numbers.
    fn default() -> Self {
        Self {
            family: LlamaFamily::Llama,
            d_model: 768,
            n_heads: 12,
            d_ff: 2048,
            n_layers: 12,
            n_kv_heads: None,
            head_dim: None,
            attention_bias: None,
            mlp_bias: None,
            hidden_act: None,
            sliding_window: None,
            layer_types: None,
            no_rope_layers: None,
            rope_theta: 1e4,
            rope_local_base_freq: None,
            rope_scaling: RopeScaling::default(),
            partial_rotary_factor: None,
            max_position_embeddings: None,
            query_pre_attn_scalar: None,
            attention_multiplier: None,
            attn_logit_softcapping: None,
            final_logit_softcapping: None,
            embedding_multiplier: None,
            residual_multiplier: None,
            logits_scaling: None,
            use_parallel_residual: None,
            norm_eps: 1e-5,
            tie_word_embeddings: false,
            resize_embeddings: false,
            attention_dropout: 0.0,
            dropout: 0.0,
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
        let ([length], [_]) = (&plan.input[..], &plan.target[..]) else {
            bail!("it predicts the next token of a text: use `data.name = \"tokens\"`")
        };
        if let Some((key, what)) = self.family_misfit() {
            bail!("`{key}` {what}");
        }
        let spec = self.family.spec();
        let builder = &self.lora.base(builder);
        let init = Init::Normal(self.init_std);
        let table = builder.pp(spec.tensors.embedding);
        let embedding = Embedding::with_init(&table, plan.outputs, self.d_model, init)?;
        if self.resize_embeddings {
            table.may_grow("weight");
        }
        let positions = match spec.positions {
            Positions::Rotary { .. } => None,
            Positions::Learned { table, offset } => {
                let rows = self.positions(*length) + offset as usize;
                let table = builder.pp(table);
                Some((Embedding::with_init(&table, rows, self.d_model, init)?, offset))
            }
        };
        let kinds = self.layer_kinds(*length)?;
        let layers = builder.pp(spec.tensors.layers);
        let layer = |(i, kind)| Layer::new(self, &layers.pp(i), kind).map(Arc::new);
        let layers = kinds.into_iter().enumerate().map(layer).collect::<Result<_>>()?;
        let norm = Norm::new(self, &builder.pp(spec.tensors.norm), self.d_model)?;
        let head = spec.tensors.head[0].trim_end_matches('.');
        let head = if self.tie_word_embeddings {
            builder.alias(&format!("{head}.weight"), embedding.weight())?;
            None
        } else {
            let head = builder.pp(head);
            if self.resize_embeddings {
                head.may_grow("weight");
            }
            Some(Linear::with_init(&head, self.d_model, plan.outputs, init, None)?)
        };
        let scale = spec.is_embedding_scaled.then(|| (self.d_model as f64).sqrt());
        Ok(Box::new(Llama {
            embedding,
            embedding_scale: self.embedding_multiplier.or(scale),
            positions,
            layers,
            norm,
            head,
            logits_scale: self.logits_scaling.map(|by| 1.0 / by),
            softcap: self.final_logit_softcapping,
            length: *length,
        }))
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
        Head::Keys(self.family.spec().tensors.head)
    }

    fn library(&self) -> Option<Library> {
        Some(Library::Transformers)
    }

    fn named_as(&self, plan: &ModelPlan, library: Library) -> std::result::Result<Naming, String> {
        match library {
            Library::Transformers => {
                Ok(Naming::with_config(files::config_json(self, plan.outputs, plan.input[0])))
            }
            Library::Timm | Library::Torchvision => Err(Naming::unknown()),
        }
    }

    fn adapters(&self) -> Option<&Path> {
        self.lora.adapters.as_deref()
    }

    fn misfit(&self) -> Option<(String, String)> {
        self.family_misfit()
    }

    fn complete(
        &self,
        pretrained: Option<&Path>,
        seq_len: Option<u32>,
    ) -> std::result::Result<InferredOptions, PretrainedError> {
        let what = "a language model";
        let mut found = hub::complete(Self::NAME, what, files::read, pretrained, seq_len)?;
        let family = found.options.get("family").cloned();
        let family = family.and_then(|family| serde_json::from_value(family).ok());
        let adapters = peft::complete(&self.lora)?;
        let lora = self.lora_of(family.unwrap_or(self.family));
        if adapters.is_empty() && self.lora.r.is_some() && lora != self.lora {
            found.set("lora", lora);
        }
        found.options.extend(adapters);
        Ok(found)
    }
}

impl LlamaConfig {
    /// The adapters, with the targets of the family where these are not a Llama's.
    fn lora_of(&self, family: LlamaFamily) -> Lora {
        let usual = family.spec().lora_targets;
        let mut lora = self.lora.clone();
        let is_open = lora.targets.is_none() && lora.target_regex.is_none();
        if is_open && usual != LlamaFamily::Llama.spec().lora_targets {
            lora.targets = Some(usual.iter().map(|&name| name.to_owned()).collect());
        }
        lora
    }

    fn lora_config(&self) -> Option<LoraConfig> {
        self.lora_of(self.family).resolved()
    }

    /// An option, or a target of adapters, that the family does not have: its key, and the reason.
    fn family_misfit(&self) -> Option<(String, String)> {
        let spec = self.family.spec();
        let family = format!("`family` = \"{}\"", spec.model_type);
        if let Some(name) = self.idle_options().first() {
            return Some((name.clone(), format!("does nothing with {family}")));
        }
        let last = |name: &String| name.rsplit('.').next().unwrap_or(name).to_owned();
        let unknown = |names: &Option<Vec<String>>, known: &[&str]| {
            let mut names = names.iter().flatten();
            names.find(|name| !known.contains(&last(name).as_str())).cloned()
        };
        let mut layers = spec.layers();
        layers.push(peft::ALL_LINEAR);
        if let Some(name) = unknown(&self.lora.targets, &layers) {
            let layers = layers.join("`, `");
            let what = format!("names `{name}`, but the layers of {family} are `{layers}`");
            return Some(("lora.targets".to_owned(), what));
        }
        let modules = spec.modules();
        if let Some(name) = unknown(&self.lora.modules_to_save, &modules) {
            let modules = modules.join("`, `");
            let what = format!("names `{name}`, but the modules of {family} are `{modules}`");
            return Some(("lora.modules_to_save".to_owned(), what));
        }
        for (key, given) in [
            ("layer_types", self.layer_types.as_ref().map(Vec::len)),
            ("no_rope_layers", self.no_rope_layers.as_ref().map(Vec::len)),
        ] {
            if let Some(given) = given.filter(|&given| given != self.n_layers) {
                let what = format!("has {given} entries for `n_layers` = {}", self.n_layers);
                return Some((key.to_owned(), what));
            }
        }
        let has_window =
            self.layer_types.as_ref().is_some_and(|all| all.contains(&LayerType::SlidingAttention));
        (has_window && self.sliding_window.is_none()).then(|| {
            let what = "with `sliding_attention` needs `sliding_window`";
            ("layer_types".to_owned(), what.to_owned())
        })
    }

    /// Options that are not those of a default, and that the family does not have.
    pub(super) fn idle_options(&self) -> Vec<String> {
        /// Options of every family.
        const COMMON: [&str; 6] =
            ["family", "init_std", "lora", "norm_eps", "n_kv_heads", "resize_embeddings"];
        let spec = self.family.spec();
        let options = |of: &Self| serde_json::to_value(of).unwrap_or_default();
        let (given, usual) = (options(self), options(&Self::default()));
        let given = given.as_object().into_iter().flatten();
        let mut idle: Vec<String> = given
            .filter(|(key, value)| usual[key.as_str()] != **value)
            .filter(|(key, _)| !COMMON.contains(&key.as_str()) && !spec.has(key))
            .map(|(key, _)| key.clone())
            .collect();
        // Where a family has no heads of keys of its own, or no eps, only the usual ones fit.
        if !spec.has("n_kv_heads") && self.n_kv_heads.is_some_and(|n| n != self.n_heads) {
            idle.push("n_kv_heads".to_owned());
        }
        if !spec.has("norm_eps") && (self.norm_eps - Self::default().norm_eps).abs() > 0.0 {
            idle.push("norm_eps".to_owned());
        }
        idle
    }

    /// Features of a head.
    fn head_width(&self) -> Result<usize> {
        let (width, heads) = (self.d_model, self.n_heads);
        let is_turned = matches!(self.family.spec().positions, Positions::Rotary { .. });
        let step = if is_turned { 2 } else { 1 };
        match self.head_dim {
            Some(d) if !d.is_multiple_of(step) => bail!("`head_dim` = {d} is odd"),
            Some(d) => Ok(d),
            None if heads == 0 || !width.is_multiple_of(step * heads) => {
                bail!("`d_model` = {width} cannot be divided into even `n_heads` = {heads}")
            }
            None => Ok(width / heads),
        }
    }

    /// Factor of the scores, if they are not divided by the root of a head's width.
    fn score_factor(&self) -> Option<f64> {
        let of_scalar = self.query_pre_attn_scalar.map(|scalar| scalar.powf(-0.5));
        self.attention_multiplier.or(of_scalar)
    }

    fn is_parallel(&self) -> bool {
        self.family == LlamaFamily::GptNeox && self.use_parallel_residual.unwrap_or(true)
    }

    /// Positions that it is made for, with windows of `length` tokens.
    pub(super) fn positions(&self, length: usize) -> usize {
        self.max_position_embeddings.unwrap_or(length)
    }

    /// True for each layer that has rotary positions.
    pub(super) fn turning_layers(&self) -> Vec<bool> {
        let is_rotary = matches!(self.family.spec().positions, Positions::Rotary { .. });
        let turns = |i: usize| match &self.no_rope_layers {
            Some(layers) => layers.get(i).is_none_or(|&turns| turns != 0),
            None => true,
        };
        (0..self.n_layers).map(|i| is_rotary && turns(i)).collect()
    }

    /// What each layer attends to.
    pub(super) fn attended(&self) -> Vec<LayerType> {
        match (&self.layer_types, self.sliding_window) {
            (Some(all), _) => all.clone(),
            (None, Some(_)) => vec![LayerType::SlidingAttention; self.n_layers],
            (None, None) => vec![LayerType::FullAttention; self.n_layers],
        }
    }

    fn layer_kinds(&self, length: usize) -> Result<Vec<LayerKind>> {
        let max_positions = self.positions(length);
        if matches!(self.family.spec().positions, Positions::Learned { .. })
            && length > max_positions
        {
            bail!("windows of {length} tokens, but `max_position_embeddings` = {max_positions}");
        }
        let share = self.partial_rotary_factor.unwrap_or(1.0);
        let features = (self.head_width()? as f64 * share) as usize;
        let sizes = |theta| RopeSizes { theta, features, seq_len: length, max_positions };
        let refused = candle_core::Error::Msg;
        let rope = self.rope_scaling.rope(sizes(self.rope_theta)).map_err(refused)?;
        let local = match self.rope_local_base_freq {
            Some(theta) => RopeScaling::default().rope(sizes(theta)).map_err(refused)?,
            None => rope.clone(),
        };
        let kinds = self.attended().into_iter().zip(self.turning_layers());
        Ok(kinds
            .map(|(attended, turns)| match attended {
                LayerType::FullAttention => {
                    LayerKind { rope: turns.then(|| rope.clone()), window: None }
                }
                LayerType::SlidingAttention => {
                    LayerKind { rope: turns.then(|| local.clone()), window: self.sliding_window }
                }
            })
            .collect())
    }
}

struct Llama {
    embedding: Embedding,
    embedding_scale: Option<f64>,
    /// A vector for each position behind so many that are none.
    positions: Option<(Embedding, u32)>,
    layers: Vec<Arc<Layer>>,
    norm: Norm,
    /// `None` = the embedding's table.
    head: Option<Linear>,
    logits_scale: Option<f64>,
    softcap: Option<f64>,
    length: usize,
}

impl Llama {
    /// The vectors of tokens (n, t), with those of their positions if it has such.
    fn embedded(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let tokens = self.embedding.forward(&input.to_dtype(DType::U32)?)?;
        let tokens = multiplied(&tokens, self.embedding_scale)?;
        let Some((table, offset)) = &self.positions else { return Ok(tokens) };
        let (n, t) = input.dims2()?;
        if t > self.length {
            bail!("{t} tokens, but the model has positions for {}", self.length);
        }
        let behind = |position: u32| position + offset;
        let positions = match &pass.segments {
            Some(texts) => {
                let positions = texts.positions(t).into_iter().map(behind).collect();
                Tensor::from_vec::<_, u32>(positions, (n, t), &Device::Cpu)?
            }
            None => Tensor::from_vec((0..t as u32).map(behind).collect(), t, &Device::Cpu)?,
        };
        tokens.broadcast_add(&table.forward(&positions)?)
    }
}

impl Model for Llama {
    /// Tokens (n, t) -> logits (n, t, vocabulary).
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        ops::chain(&self.embedded(input, pass)?, |x| {
            let layers = &self.layers;
            let x = layers.iter().try_fold(x.clone(), |x, layer| nn::run_block(layer, &x, pass))?;
            let x = self.norm.forward(&x)?;
            let logits = match &self.head {
                Some(head) => head.forward(&x, pass),
                None => ops::linear(&x, &self.embedding.weight().weight()?, None, pass.precision),
            };
            let logits = multiplied(&logits?, self.logits_scale)?;
            let Some(cap) = self.softcap else { return Ok(logits) };
            ops::scale(&ops::tanh(&ops::scale(&logits, 1.0 / cap)?)?, cap)
        })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let mut x = self.embedding.onnx(graph, input)?;
        if let Some(factor) = self.embedding_scale {
            x = graph.scaled(&x, factor);
        }
        if let Some((table, offset)) = &self.positions {
            let table = table.weight().onnx(graph)?;
            let rows = table.dims()[0].unwrap_or(1);
            let first = *offset as usize;
            let table = graph.narrowed(&table, 0, first, rows.saturating_sub(first));
            let steps = graph.length(input, 1);
            let positions = graph.cut(&table, 0, &steps);
            x = graph.add(&x, &positions);
        }
        let x = self.layers.iter().try_fold(x, |x, layer| layer.onnx(graph, &x))?;
        let x = self.norm.onnx(graph, &x)?;
        let mut logits = if let Some(head) = &self.head {
            head.onnx(graph, &x)?
        } else {
            let table = self.embedding.weight().onnx(graph)?;
            graph.linear(&x, &table, None)
        };
        if let Some(factor) = self.logits_scale {
            logits = graph.scaled(&logits, factor);
        }
        Ok(match self.softcap {
            Some(cap) => graph.softcapped(&logits, cap),
            None => logits,
        })
    }
}
