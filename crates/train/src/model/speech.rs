//! Recordings of speech and their lengths, and `fastconformer`, a classifier of them: the mean of
//! an encoder's frames, and a linear layer, to probe what an encoder has learnt, or to fine-tune
//! it.
//!
//! A sample is (2, frames + 1, mels): features of clean and of noisy speech; the first number of
//! the last row is the number of frames that are not padding.
//!
//! Keys: `encoder.*` (see `fastconformer.rs`), `head`.

use candle_core::{Result, Tensor, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::architecture::{BACKBONE_MODE, BackboneMode, check_backbone_mode};
use super::fastconformer::{FastConformer, SUBSAMPLING_FACTOR, Sizes};
use super::{Architecture, Head, Model};
use crate::config::kind::{Kind, OptionConflict};
use crate::nn::{Builder, ForwardContext, Linear};
use crate::onnx::{Attribute, Graph, Value};
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

/// Frames (without the row of the length) and mels of a sample.
pub(super) fn frames_and_mels(input: &[usize]) -> Result<[usize; 2]> {
    match *input {
        [2, rows, mels] if rows % SUBSAMPLING_FACTOR == 1 => Ok([rows - 1, mels]),
        _ => bail!("it takes speech: use `data.name = \"speech\"`"),
    }
}

/// Clean (0) or noisy (1) speech of a batch, (n, frames, mels), and the lengths of its samples.
pub(super) fn frames_and_lengths(inputs: &Tensor, kind: usize) -> Result<(Tensor, Vec<usize>)> {
    let (_, _, rows, _) = inputs.dims4()?;
    let speech = inputs.narrow(1, kind, 1)?.squeeze(1)?;
    let lengths = speech.narrow(1, rows - 1, 1)?.narrow(2, 0, 1)?.flatten_all()?;
    let lengths = lengths.to_vec1::<f32>()?.into_iter().map(|length| length as usize).collect();
    Ok((speech.narrow(1, 0, rows - 1)?.contiguous()?, lengths))
}

/// [`frames_and_lengths`] in a graph of ONNX; lengths are (n, 1).
pub(super) fn frames_and_lengths_onnx(
    graph: &mut Graph,
    inputs: &Value,
    kind: usize,
) -> (Value, Value) {
    let rows = inputs.dims()[2].unwrap_or(1);
    let speech = graph.narrowed(inputs, 1, kind, 1);
    let speech = graph.squeezed(&speech, &[1]);
    let last = graph.narrowed(&speech, 1, rows - 1, 1);
    let last = graph.squeezed(&last, &[1]);
    let lengths = graph.narrowed(&last, 1, 0, 1);
    let lengths = graph.unary("Floor", &lengths, &[]);
    (graph.narrowed(&speech, 1, 0, rows - 1), lengths)
}

/// Mean over the first `lengths[i]` steps of sample i, at least one: x (n, steps, c) -> (n, c).
pub(super) fn mean_within(x: &Tensor, lengths: &[usize]) -> Result<Tensor> {
    let steps = x.dim(1)?;
    let share = |&length: &usize| {
        let length = length.clamp(1, steps);
        (0..steps).map(move |step| if step < length { 1.0 / length as f32 } else { 0.0 })
    };
    let shares: Vec<f32> = lengths.iter().flat_map(share).collect();
    let shares = Tensor::from_vec(shares, (lengths.len(), steps, 1), x.device())?;
    x.broadcast_mul(&shares)?.sum(1)
}

/// [`mean_within`] in a graph of ONNX; lengths are (n, 1).
pub(super) fn mean_within_onnx(graph: &mut Graph, x: &Value, lengths: &Value) -> Value {
    let steps = x.dims()[1].unwrap_or(1);
    let [least, most] = [1.0, steps as f64].map(|limit| graph.scalar(limit));
    let lengths = graph.binary("Max", lengths, &least);
    let lengths = graph.binary("Min", &lengths, &most);
    let is_own = graph.is_within(steps, &lengths);
    let is_own = graph.unary("Cast", &is_own, &[Attribute::Int("to", 1)]);
    let shares = graph.div(&is_own, &lengths);
    let shares = graph.unsqueezed(&shares, &[2]);
    let shared = graph.mul(x, &shares);
    let mean = graph.reduced("ReduceSum", &shared, &[1]);
    graph.squeezed(&mean, &[1])
}
