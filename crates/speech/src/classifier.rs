//! `fastconformer`, a classifier of recordings: the mean of an encoder's frames, and a linear layer,
//! to probe what an encoder has learnt, or to fine-tune it.
//!
//! Keys: `encoder.*` (see `fastconformer.rs`), `head`.

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::fastconformer::{FastConformer, Sizes, frames_and_mels};
use crate::model::padded_frames::{
    frames_and_lengths, frames_and_lengths_onnx, mean_within, mean_within_onnx,
};
use crate::model::{Architecture, BACKBONE_MODE, BackboneMode, Head, Model, check_backbone_mode};
use crate::nn::{Builder, ForwardContext, Linear};
use crate::onnx::{Graph, Value};
use crate::plan::{Modality, ModelPlan};

/// `FastConformer` with a linear layer on the mean of its frames: classes of speech.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FastConformerConfig {
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
    /// kernel size of a block's convolution, in frames (odd).
    #[schemars(range(min = 1, max = 1024))]
    pub kernel_size: usize,
    /// channels of the 8x subsampling convolutions.
    #[schemars(range(min = 1, max = 16384))]
    pub subsampling_channels: usize,
    /// train only the head.
    pub freeze_backbone: bool,
    /// See [`BackboneMode`]; `None` is "eval".
    #[schemars(with = "BackboneMode", description = BACKBONE_MODE, example = BackboneMode::Eval)]
    pub backbone_mode: Option<BackboneMode>,
}

impl Default for FastConformerConfig {
    /// NEST's small size.
    fn default() -> Self {
        Self {
            d_model: 176,
            n_heads: 4,
            n_layers: 16,
            dropout: 0.1,
            kernel_size: 9,
            subsampling_channels: 256,
            freeze_backbone: false,
            backbone_mode: None,
        }
    }
}

impl Kind for FastConformerConfig {
    const NAME: &'static str = "fastconformer";

    fn check(&self) -> Vec<OptionConflict> {
        check_backbone_mode(self.freeze_backbone, self.backbone_mode)
    }
}

impl FastConformerConfig {
    fn backbone_in_eval(&self) -> bool {
        self.freeze_backbone && self.backbone_mode != Some(BackboneMode::Train)
    }
}

impl Architecture for FastConformerConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        let frames_and_mels = frames_and_mels(&plan.input)?;
        let encoder = if self.freeze_backbone { builder.frozen() } else { builder.clone() };
        let sizes = Sizes {
            width: self.d_model,
            heads: self.n_heads,
            layers: self.n_layers,
            kernel: self.kernel_size,
            channels: self.subsampling_channels,
            dropout: self.dropout,
        };
        Ok(Box::new(Classifier {
            encoder: FastConformer::new(sizes, &encoder.pp("encoder"), frames_and_mels)?,
            head: Linear::new(&builder.pp("head"), self.d_model, plan.outputs)?,
            in_eval: self.backbone_in_eval(),
        }))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Speech]
    }

    /// Weights of a pre-trained encoder include the decoder of its pre-training.
    fn head(&self) -> Head {
        Head::Keys(&["head.", "decoder.", "quantizer.", "mask_processor."])
    }

    fn keeps_statistics(&self) -> bool {
        self.backbone_in_eval()
    }
}

struct Classifier {
    encoder: FastConformer,
    head: Linear,
    /// True if the encoder runs in evaluation mode: no dropout, and its own statistics.
    in_eval: bool,
}

impl Model for Classifier {
    /// (n, 2, frames + 1, mels) -> (n, classes)
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let (speech, lengths) = frames_and_lengths(input, 1)?;
        let inside = if self.in_eval { pass.evaluating() } else { pass.clone() };
        let (encoded, lengths) = self.encoder.forward(&speech, &lengths, &inside)?;
        self.head.forward(&mean_within(&encoded, &lengths)?, pass)
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let (speech, lengths) = frames_and_lengths_onnx(graph, input, 1);
        let (encoded, lengths) = self.encoder.onnx(graph, &speech, &lengths)?;
        let mean = mean_within_onnx(graph, &encoded, &lengths);
        self.head.onnx(graph, &mean)
    }
}
