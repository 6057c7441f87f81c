//! `iTransformer` (Liu et al., ICLR 2024, <https://arxiv.org/abs/2310.06625>,
//! github.com/thuml/iTransformer): each series of a window is one token, and so is each feature of
//! its dates.
//!
//! Keys: `enc_embedding.value_embedding`, `encoder.attn_layers.{i}` (see `informer_encoder.rs`),
//! `encoder.norm`, `projector`.

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::informer_encoder::{Encoder, Sizes};
use super::series::{InstanceNormOnnx, Window};
use super::{Architecture, Head, Model};
use crate::config::kind::Kind;
use crate::nn::{Builder, Dropout, ForwardContext, LayerNorm, Linear};
use crate::onnx::{Graph, Value};
use crate::ops::{self, Deviation, InstanceNorm};
use crate::plan::{Modality, ModelPlan};

/// `iTransformer`: each series of a window is one token, and so is each feature of its dates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ITransformerConfig {
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
    /// dropout after each sublayer.
    #[schemars(range(min = 0.0), extend("exclusiveMaximum" = 1.0))]
    pub dropout: f64,
}

impl Default for ITransformerConfig {
    /// The options of the authors' scripts.
    fn default() -> Self {
        Self { d_model: 512, n_heads: 8, d_ff: 512, n_layers: 2, dropout: 0.1 }
    }
}

impl Kind for ITransformerConfig {
    const NAME: &'static str = "itransformer";
}

impl Architecture for ITransformerConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let window = Window::of(plan)?;
        let width = self.d_model;
        let sizes = Sizes {
            width,
            heads: self.n_heads,
            inner: self.d_ff,
            layers: self.n_layers,
            dropout: self.dropout,
        };
        let embedding = builder.pp("enc_embedding");
        let encoder = builder.pp("encoder");
        Ok(Box::new(ITransformer {
            window,
            embedding: Linear::new(&embedding.pp("value_embedding"), window.seq_len, width)?,
            dropout: Dropout::new(&embedding.pp("dropout"), self.dropout),
            encoder: Encoder::new(sizes, &encoder)?,
            norm: LayerNorm::new(&encoder.pp("norm"), width)?,
            projector: Linear::new(&builder.pp("projector"), width, window.pred_len)?,
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Series]
    }

    fn head(&self) -> Head {
        Head::Keys(&["projector."])
    }
}

struct ITransformer {
    window: Window,
    embedding: Linear,
    dropout: Dropout,
    encoder: Encoder,
    norm: LayerNorm,
    projector: Linear,
}

impl Model for ITransformer {
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let x = InstanceNorm::new(input, self.window.series, Deviation::Population)?;
        let tokens = self.embedding.forward(&x.rows, pass)?;
        let tokens = self.encoder.forward(&self.dropout.forward(&tokens, pass)?, pass)?;
        // The tokens of the dates are dropped.
        let tokens = ops::narrow(&self.norm.forward(&tokens)?, 1, 0, self.window.series)?;
        x.denormalise(&self.projector.forward(&tokens, pass)?)
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let x = InstanceNormOnnx::new(graph, input, self.window.series, Deviation::Population);
        let tokens = self.embedding.onnx(graph, &x.rows)?;
        let tokens = self.encoder.onnx(graph, &tokens)?;
        let tokens = self.norm.onnx(graph, &tokens)?;
        let tokens = graph.narrowed(&tokens, 1, 0, self.window.series);
        let y = self.projector.onnx(graph, &tokens)?;
        Ok(x.denormalise(graph, &y))
    }
}
