//! `iTransformer` (Liu et al., ICLR 2024, <https://arxiv.org/abs/2310.06625>, github.com/thuml/iTransformer): each series
//! of a window is one token, and so is each feature of its dates.
//!
//! Keys: `enc_embedding.value_embedding`, `encoder.attn_layers.{i}` (see `encoder.rs`), `encoder.norm`, `projector`.

use candle_core::{Result, Tensor};

use super::Model;
use super::encoder::Encoder;
use super::series::Window;
use crate::nn::{Builder, Dropout, ForwardContext, LayerNorm, Linear};
use crate::ops::{Deviation, InstanceNorm};
use crate::plan::ModelPlan;

pub(super) fn build(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    let (window, width) = (Window::of(plan)?, plan.sequence.d_model);
    let embedding = builder.pp("enc_embedding");
    let encoder = builder.pp("encoder");
    Ok(Box::new(ITransformer {
        window,
        embedding: Linear::new(&embedding.pp("value_embedding"), window.seen, width)?,
        dropout: Dropout::new(&embedding.pp("dropout"), plan.dropout),
        encoder: Encoder::new(plan, &encoder)?,
        norm: LayerNorm::new(&encoder.pp("norm"), width)?,
        projector: Linear::new(&builder.pp("projector"), width, window.next)?,
    }))
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
        // What came of the dates has done its work.
        let tokens = self.norm.forward(&tokens)?.narrow(1, 0, self.window.series)?.contiguous()?;
        x.undo(&self.projector.forward(&tokens, pass)?)
    }
}
