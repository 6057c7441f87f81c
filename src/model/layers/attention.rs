//! `name = "attention"`

use candle_core::{Result as CandleResult, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::model::layers::{
    Decided, Flow, Forward, Layer, LayerMisfit, Node, Scope, Site, Sizes, Unfit,
};
use crate::nn::{Dropout, ForwardContext, Linear};
use crate::ops::{self, Attention};

/// self-attention over the steps of a sequence, with a linear layer before it (`qkv`) and one after it (`proj`), as timm's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SelfAttention {
    /// heads, which divide the features.
    #[schemars(range(min = 1, max = 16_777_216), example = 4)]
    pub n_heads: u32,
    /// whether a step sees only itself and those before it.
    #[serde(default)]
    #[schemars(example = true)]
    pub causal: bool,
    /// dropout of the probabilities.
    #[serde(default)]
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0), example = 0.1)]
    pub p: f64,
}

impl Kind for SelfAttention {
    const NAME: &'static str = "attention";
}

impl Layer for SelfAttention {
    fn decide(&self, input: Flow, _: &mut Scope<'_>) -> Result<Decided, LayerMisfit> {
        let [_, features] = input.sequence()?;
        let heads = self.n_heads;
        if !features.is_multiple_of(heads as usize) {
            let what = format!("{heads} heads do not divide {features} features");
            return Err(Unfit { key: "n_heads", what, help: None }.into());
        }
        Ok(input.into())
    }

    fn details(&self, _: &Sizes) -> String {
        format!(", {} heads{}", self.n_heads, if self.causal { ", causal" } else { "" })
    }

    fn parameters(&self, sizes: &Sizes) -> usize {
        4 * (sizes.inputs() + 1) * sizes.inputs()
    }

    fn flops(&self, sizes: &Sizes) -> u64 {
        sizes.product(4 * sizes.inputs()) + sizes.product(2 * sizes.output.rows())
    }

    fn draws(&self) -> bool {
        true
    }

    fn build(&self, site: &Site<'_>) -> CandleResult<Node> {
        let (builder, inputs) = (site.builder(), site.sizes().inputs());
        Ok(Node::of(Built {
            qkv: Linear::new(&builder.pp("qkv"), inputs, 3 * inputs)?,
            proj: Linear::new(&builder.pp("proj"), inputs, inputs)?,
            heads: self.n_heads as usize,
            causal: self.causal,
            dropout: Dropout::new(&site.draws(), self.p),
        }))
    }
}

/// One linear layer for queries, keys and values, and one after the attention.
struct Built {
    qkv: Linear,
    proj: Linear,
    heads: usize,
    causal: bool,
    /// Of the probabilities.
    dropout: Dropout,
}

impl Forward for Built {
    /// x (n, steps, c) -> (n, steps, c).
    fn forward(&self, x: &Tensor, pass: &ForwardContext) -> CandleResult<Tensor> {
        let dropout = self.dropout.drawn(pass);
        let Self { heads, causal, .. } = *self;
        let options = Attention { heads, causal, dropout, precision: pass.precision };
        let qkv = self.qkv.forward(x, pass)?;
        self.proj.forward(&ops::attention_packed(&qkv, options)?, pass)
    }
}
