//! GPT-2 as nanoGPT writes it (Radford et al., 2019; github.com/karpathy/nanoGPT): token and
//! position embeddings, pre-norm blocks of causal attention and a feed-forward part, and logits by
//! the token embedding itself.
//!
//! Keys: `transformer.{wte,wpe}.weight`,
//! `transformer.h.{i}.{ln_1,attn.c_attn,attn.c_proj,ln_2,mlp.c_fc,mlp.c_proj}`, `transformer.ln_f`;
//! `lm_head.weight` is another name of `transformer.wte.weight`.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::check_heads;
use super::hub::{self, gpt2};
use super::names::{Library, Naming};
use super::pretrained::PretrainedError;
use super::{Architecture, Head, InferredOptions, Model};
use crate::config::kind::Kind;
use crate::nn::state_dict::Mismatch;
use crate::nn::{self, Builder, Dropout, Embedding, ForwardContext, Init, LayerNorm, Linear};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Attention, LinearActivation};
use crate::plan::{Modality, ModelPlan};

/// Standard deviation of initial weights; divided by sqrt(2 layers) for residual projections.
const STD: f64 = 0.02;

/// GPT-2, as in nanoGPT: pre-norm blocks of causal attention and a feed-forward network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GptConfig {
    /// width, a multiple of `n_heads`.
    #[schemars(range(min = 1, max = 65536))]
    pub d_model: usize,
    /// number of attention heads.
    #[schemars(range(min = 1, max = 1024))]
    pub n_heads: usize,
    /// number of layers.
    #[schemars(range(min = 1, max = 1024))]
    pub n_layers: usize,
    /// dropout after each sublayer.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub dropout: f64,
    /// biases in linear layers and norms, as in GPT-2.
    pub bias: bool,
    /// positions that it has embeddings of; longer windows than `data.seq_len` can then be trained
    /// on later. Default: those of the weights that it starts from, or `data.seq_len`.
    #[schemars(range(min = 1, max = 1_048_576), example = 1024)]
    pub n_positions: Option<usize>,
    /// "gelu", exact as in nanoGPT, or `gelu_tanh`, the approximation that GPT-2 was trained with.
    pub activation: Gelu,
}

/// Forms of the GELU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gelu {
    /// With the normal distribution function, as nanoGPT's.
    #[default]
    Gelu,
    /// Its approximation by the tangent, as GPT-2's.
    GeluTanh,
}

impl Default for GptConfig {
    /// GPT-2's smallest.
    fn default() -> Self {
        Self {
            d_model: 768,
            n_heads: 12,
            n_layers: 12,
            dropout: 0.0,
            bias: false,
            n_positions: None,
            activation: Gelu::Gelu,
        }
    }
}

impl Kind for GptConfig {
    const NAME: &'static str = "gpt";
}

impl Architecture for GptConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let ([length], [_]) = (&plan.input[..], &plan.target[..]) else {
            bail!("it predicts the next token of a text: use `data.name = \"tokens\"`")
        };
        let width = self.d_model;
        let layers = self.n_layers;
        let builder_root = builder;
        let builder = builder.pp("transformer");
        let table = |name: &str, rows| {
            Embedding::with_init(&builder.pp(name), rows, width, Init::Normal(STD))
        };
        let wte = table("wte", plan.outputs)?;
        let wpe = table("wpe", self.positions(*length))?;
        let blocks = builder.pp("h");
        let block = |i| Block::new(self, &blocks.pp(i)).map(Arc::new);
        let gpt = Gpt {
            dropout: Dropout::new(&builder.pp("drop"), self.dropout),
            blocks: (0..layers).map(block).collect::<Result<_>>()?,
            norm: norm(self, &builder.pp("ln_f"))?,
            length: *length,
            wte,
            wpe,
        };
        builder_root.alias("lm_head.weight", gpt.wte.weight())?;
        Ok(Box::new(gpt))
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

    /// The output layer is the token embedding.
    fn head(&self) -> Head {
        Head::Keys(&["transformer.wte.", "lm_head."])
    }

    fn complete(
        &self,
        pretrained: Option<&Path>,
        seq_len: Option<u32>,
    ) -> std::result::Result<InferredOptions, PretrainedError> {
        let mut found = hub::complete(Self::NAME, "a GPT", gpt2::read, pretrained, seq_len)?;
        // Rows beyond the windows are kept, so that weights go back as they came.
        if let Some(rows) = pretrained.and_then(gpt2::positions) {
            found.set("n_positions", rows);
        }
        Ok(found)
    }

    fn named_as(&self, plan: &ModelPlan, library: Library) -> std::result::Result<Naming, String> {
        match library {
            Library::Transformers => {
                let config = gpt2::config_json(self, plan, self.positions(plan.input[0]));
                Ok(Naming { is_gpt2: true, ..Naming::with_config(config) })
            }
            Library::Timm | Library::Torchvision => Err(Naming::unknown()),
        }
    }

    fn remedy(&self, misfit: &Mismatch) -> Option<String> {
        let is_bias = |key: &str| key.rsplit('.').next() == Some("bias");
        let has_biases = misfit.unexpected.iter().any(|(key, _)| is_bias(key));
        (!self.bias && has_biases)
            .then(|| "use `model.bias = true`: these weights have biases".to_owned())
    }
}

impl GptConfig {
    fn positions(&self, length: usize) -> usize {
        self.n_positions.map_or(length, |positions| positions.max(length))
    }
}

fn norm(config: &GptConfig, builder: &Builder) -> Result<LayerNorm> {
    if config.bias {
        LayerNorm::new(builder, config.d_model)
    } else {
        LayerNorm::without_bias(builder, config.d_model)
    }
}

struct Gpt {
    wte: Embedding,
    wpe: Embedding,
    dropout: Dropout,
    blocks: Vec<Arc<Block>>,
    norm: LayerNorm,
    length: usize,
}

impl Model for Gpt {
    /// Tokens (n, t) with t up to the length it was built for -> logits (n, t, vocabulary).
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let (n, t) = input.dims2()?;
        if t > self.length {
            bail!("{t} tokens, but the model has positions for {}", self.length);
        }
        let tokens = self.wte.forward(&input.to_dtype(DType::U32)?)?;
        let positions = match &pass.segments {
            Some(texts) => Tensor::from_vec(texts.positions(t), (n, t), &Device::Cpu)?,
            None => Tensor::arange(0, t as u32, &Device::Cpu)?,
        };
        let positions = self.wpe.forward(&positions)?;
        let x = self.dropout.forward(&tokens.broadcast_add(&positions)?, pass)?;
        ops::chain(&x, |x| {
            let blocks = &self.blocks;
            let x = blocks.iter().try_fold(x.clone(), |x, block| nn::run_block(block, &x, pass))?;
            let x = self.norm.forward(&x)?;
            ops::linear(&x, &self.wte.weight().weight()?, None, pass.precision)
        })
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let tokens = self.wte.onnx(graph, input)?;
        let positions = self.wpe.weight().onnx(graph)?;
        let steps = graph.length(input, 1);
        let positions = graph.cut(&positions, 0, &steps);
        let x = graph.add(&tokens, &positions);
        let x = self.blocks.iter().try_fold(x, |x, block| block.onnx(graph, &x))?;
        let x = self.norm.onnx(graph, &x)?;
        let table = self.wte.weight().onnx(graph)?;
        Ok(graph.linear(&x, &table, None))
    }
}

/// x + attention(norm x), then x + mlp(norm x).
struct Block {
    ln_1: LayerNorm,
    c_attn: Linear,
    attn_proj: Linear,
    ln_2: LayerNorm,
    c_fc: Linear,
    activation: LinearActivation,
    mlp_proj: Linear,
    heads: usize,
    /// Dropout of the attention probabilities.
    dropout: Dropout,
    after_attention: Dropout,
    after_mlp: Dropout,
}

impl Block {
    fn new(config: &GptConfig, builder: &Builder) -> Result<Self> {
        let width = config.d_model;
        let heads = config.n_heads;
        check_heads(width, heads)?;
        let residual = STD / ((2 * config.n_layers) as f64).sqrt();
        let bias = config.bias.then_some(Init::Constant(0.0));
        let linear = |builder: &Builder, inputs, outputs, std| {
            Linear::with_init(builder, inputs, outputs, Init::Normal(std), bias)
        };
        let attn = builder.pp("attn");
        let mlp = builder.pp("mlp");
        Ok(Self {
            ln_1: norm(config, &builder.pp("ln_1"))?,
            c_attn: linear(&attn.pp("c_attn"), width, 3 * width, STD)?,
            attn_proj: linear(&attn.pp("c_proj"), width, width, residual)?,
            ln_2: norm(config, &builder.pp("ln_2"))?,
            c_fc: linear(&mlp.pp("c_fc"), width, 4 * width, STD)?,
            activation: match config.activation {
                Gelu::Gelu => LinearActivation::Gelu,
                Gelu::GeluTanh => LinearActivation::GeluTanh,
            },
            mlp_proj: linear(&mlp.pp("c_proj"), 4 * width, width, residual)?,
            heads,
            dropout: Dropout::new(&attn, config.dropout),
            after_attention: Dropout::new(&attn.pp("resid_dropout"), config.dropout),
            after_mlp: Dropout::new(&mlp.pp("dropout"), config.dropout),
        })
    }

    fn attention(&self, pass: &ForwardContext) -> Attention {
        let dropout = self.dropout.drawn(pass);
        Attention { heads: self.heads, causal: true, dropout, precision: pass.precision }
    }

    fn onnx(&self, graph: &mut Graph, x: &Value) -> Result<Value> {
        let y = self.ln_1.onnx(graph, x)?;
        let qkv = self.c_attn.onnx(graph, &y)?;
        let y = graph.attention_packed(&qkv, self.heads, true);
        let y = self.attn_proj.onnx(graph, &y)?;
        let x = graph.add(x, &y);
        let y = self.ln_2.onnx(graph, &x)?;
        let y = self.c_fc.onnx_activated(graph, &y, self.activation)?;
        let y = self.mlp_proj.onnx(graph, &y)?;
        Ok(graph.add(&x, &y))
    }
}

impl nn::Block for Block {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let qkv = self.c_attn.forward(&self.ln_1.forward(x)?, pass)?;
        let texts = pass.segments.as_ref();
        let y = ops::attention_packed_in(texts, &qkv, self.attention(pass))?;
        let y = self.after_attention.forward(&self.attn_proj.forward(&y, pass)?, pass)?;
        let x = ops::add(x, &y)?;
        let inner = self.ln_2.forward(&x)?;
        let inner = self.c_fc.forward_activated(&inner, self.activation, pass)?;
        let y = self.after_mlp.forward(&self.mlp_proj.forward(&inner, pass)?, pass)?;
        ops::add(&x, &y)
    }
}
