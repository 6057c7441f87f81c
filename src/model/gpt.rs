//! GPT-2 as nanoGPT writes it (Radford et al., 2019; github.com/karpathy/nanoGPT): token and position embeddings, pre-norm
//! blocks of causal attention and a feed-forward part, and logits by the token embedding itself.
//!
//! Keys: `transformer.{wte,wpe}.weight`, `transformer.h.{i}.{ln_1,attn.c_attn,attn.c_proj,ln_2,mlp.c_fc,mlp.c_proj}`,
//! `transformer.ln_f`; `lm_head.weight` is another name of `transformer.wte.weight`.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, bail};

use super::Model;
use crate::nn::{self, Builder, Dropout, Embedding, ForwardContext, Init, LayerNorm, Linear};
use crate::ops::{self, Attention, LinearActivation};
use crate::plan::{Gelu, ModelPlan};

/// Deviation of initial weights; residual projections have it over the root of twice the layers.
const STD: f64 = 0.02;

pub(super) fn build(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    let ([length], [_]) = (&plan.input[..], &plan.target[..]) else {
        bail!("it predicts the next token of a text: use `data.name = \"tokens\"`")
    };
    let (width, layers) = (plan.sequence.d_model, plan.sequence.n_layers);
    let builder_root = builder;
    let builder = builder.pp("transformer");
    let table =
        |name: &str, rows| Embedding::with_init(&builder.pp(name), rows, width, Init::Normal(STD));
    let wte = table("wte", plan.outputs)?;
    let wpe = table("wpe", *length)?;
    let blocks = builder.pp("h");
    let block = |i| Block::new(plan, &blocks.pp(i)).map(Arc::new);
    let gpt = Gpt {
        dropout: Dropout::new(&builder.pp("drop"), plan.dropout),
        blocks: (0..layers).map(block).collect::<Result<_>>()?,
        norm: norm(plan, &builder.pp("ln_f"))?,
        length: *length,
        wte,
        wpe,
    };
    builder_root.alias("lm_head.weight", gpt.wte.weight())?;
    Ok(Box::new(gpt))
}

fn norm(plan: &ModelPlan, builder: &Builder) -> Result<LayerNorm> {
    let width = plan.sequence.d_model;
    if plan.sequence.bias {
        LayerNorm::new(builder, width)
    } else {
        LayerNorm::without_bias(builder, width)
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
        let (_, t) = input.dims2()?;
        if t > self.length {
            bail!("{t} tokens, but the model has positions for {}", self.length);
        }
        let tokens = self.wte.forward(&input.to_dtype(DType::U32)?)?;
        let positions = self.wpe.forward(&Tensor::arange(0, t as u32, &Device::Cpu)?)?;
        let x = self.dropout.forward(&tokens.broadcast_add(&positions)?, pass)?;
        ops::chain(&x, |x| {
            let blocks = &self.blocks;
            let x = blocks.iter().try_fold(x.clone(), |x, block| nn::run_block(block, &x, pass))?;
            let x = self.norm.forward(&x)?;
            ops::linear(&x, &self.wte.weight().weight()?, None, pass.precision)
        })
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
    /// Of the probabilities.
    dropout: Dropout,
    after_attention: Dropout,
    after_mlp: Dropout,
}

impl Block {
    fn new(plan: &ModelPlan, builder: &Builder) -> Result<Self> {
        let sizes = &plan.sequence;
        let (width, heads) = (sizes.d_model, sizes.n_heads);
        if heads == 0 || width % heads != 0 {
            bail!("`d_model` = {width} cannot be divided among `n_heads` = {heads}");
        }
        let residual = STD / ((2 * sizes.n_layers) as f64).sqrt();
        let bias = sizes.bias.then_some(Init::Constant(0.0));
        let linear = |builder: &Builder, inputs, outputs, std| {
            Linear::with_init(builder, inputs, outputs, Init::Normal(std), bias)
        };
        let (attn, mlp) = (builder.pp("attn"), builder.pp("mlp"));
        Ok(Self {
            ln_1: norm(plan, &builder.pp("ln_1"))?,
            c_attn: linear(&attn.pp("c_attn"), width, 3 * width, STD)?,
            attn_proj: linear(&attn.pp("c_proj"), width, width, residual)?,
            ln_2: norm(plan, &builder.pp("ln_2"))?,
            c_fc: linear(&mlp.pp("c_fc"), width, 4 * width, STD)?,
            activation: match sizes.activation {
                Gelu::Gelu => LinearActivation::Gelu,
                Gelu::GeluTanh => LinearActivation::GeluTanh,
            },
            mlp_proj: linear(&mlp.pp("c_proj"), 4 * width, width, residual)?,
            heads,
            dropout: Dropout::new(&attn, plan.dropout),
            after_attention: Dropout::new(&attn.pp("resid_dropout"), plan.dropout),
            after_mlp: Dropout::new(&mlp.pp("dropout"), plan.dropout),
        })
    }

    fn attention(&self, pass: &ForwardContext) -> Attention {
        let dropout = self.dropout.drawn(pass);
        Attention { heads: self.heads, causal: true, dropout, precision: pass.precision }
    }
}

impl nn::Block for Block {
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let qkv = self.c_attn.forward(&self.ln_1.forward(x)?, pass)?;
        let y = ops::attention_packed(&qkv, self.attention(pass))?;
        let y = self.after_attention.forward(&self.attn_proj.forward(&y, pass)?, pass)?;
        let x = ops::add(x, &y)?;
        let inner = self.ln_2.forward(&x)?;
        let inner = self.c_fc.forward_activated(&inner, self.activation, pass)?;
        let y = self.after_mlp.forward(&self.mlp_proj.forward(&inner, pass)?, pass)?;
        ops::add(&x, &y)
    }
}
