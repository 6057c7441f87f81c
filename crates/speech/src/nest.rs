//! NEST (Huang et al., 2024, <https://arxiv.org/abs/2408.13106>), pre-training on speech without
//! labels: a `FastConformer` gets noisy speech with masked blocks, and predicts for these the
//! tokens that a frozen random projection makes of the clean speech (BEST-RQ, Chiu et al., 2022).
//! As in NVIDIA `NeMo`, except that every utterance has at least one masked token: in `NeMo` it may
//! have none, and a batch of such utterances has no loss.
//!
//! Keys: `encoder.*` (see `fastconformer.rs`), `decoder.decoder_layers.0`, and the frozen
//! `quantizer.codebooks`, `quantizer.proj`, `mask_processor.mask_embedding`.

use candle_core::{D, Device, Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::fastconformer::{FastConformer, SUBSAMPLING_FACTOR, Sizes, frames_and_mels};
use crate::model::padded_frames::{frames_and_lengths, frames_and_lengths_onnx};
use crate::model::{Architecture, Comparison, Model};
use crate::nn::{Builder, Conv1d, ConvShape, ForwardContext, Init, Param};
use crate::onnx::{Graph, Value};
use crate::ops::Window;
use crate::plan::{Modality, ModelPlan};
use crate::rng::Key;

/// Share of the frames of a group that must be masked for its token to be predicted.
const MIN_MASKED_SHARE: f64 = 0.8;
/// Masked frames of utterances that are hardly longer than a block.
const SHORT_MASK: usize = 8;

/// NEST: speech without labels, by predicting the tokens of masked blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NestConfig {
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
    /// codebook size of the frozen random projection.
    #[schemars(range(min = 2, max = 1_048_576))]
    pub codebook_size: usize,
    /// code dimension.
    #[schemars(range(min = 1, max = 4096))]
    pub code_dim: usize,
    /// probability that a masked block starts at a frame.
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub mask_prob: f64,
    /// frames of a masked block, of 10 ms each; at least 8, which are one token.
    #[schemars(range(min = 8, max = 65536))]
    pub mask_block: usize,
}

impl Default for NestConfig {
    /// The small size.
    fn default() -> Self {
        Self {
            d_model: 176,
            n_heads: 4,
            n_layers: 16,
            dropout: 0.1,
            kernel_size: 9,
            subsampling_channels: 256,
            codebook_size: 8192,
            code_dim: 16,
            mask_prob: 0.01,
            mask_block: 40,
        }
    }
}

impl Kind for NestConfig {
    const NAME: &'static str = "nest";
}

impl Architecture for NestConfig {
    fn build(&self, plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
        Ok(Box::new(Nest::new(self, &plan.input, builder)?))
    }

    fn takes(&self) -> &'static [Modality] {
        &[Modality::Speech]
    }

    fn draws_on_cpu(&self) -> bool {
        true
    }
}

/// The pre-training model.
pub struct Nest {
    config: NestConfig,
    encoder: FastConformer,
    decoder: Conv1d,
    codebook: Param,
    projection: Param,
    mask: Param,
}

impl Nest {
    /// Registers its parameters, for samples of the shape (2, frames + 1, mels).
    pub fn new(config: &NestConfig, input: &[usize], builder: &Builder) -> Result<Self> {
        let [frames, mels] = frames_and_mels(input)?;
        let sizes = Sizes {
            width: config.d_model,
            heads: config.n_heads,
            layers: config.n_layers,
            kernel: config.kernel_size,
            channels: config.subsampling_channels,
            dropout: config.dropout,
        };
        let encoder = FastConformer::new(sizes, &builder.pp("encoder"), [frames, mels])?;
        let window = Window { stride: 1, padding: 0 };
        let inputs = config.d_model;
        let outputs = config.codebook_size;
        let shape = ConvShape { inputs, outputs, kernel: 1, window, groups: 1 };
        let decoder = Conv1d::new(&builder.pp("decoder").pp("decoder_layers").pp(0), shape)?;
        let quantizer = builder.pp("quantizer").frozen();
        let frozen = builder.frozen();
        let entries = config.codebook_size;
        let length = config.code_dim;
        let inputs = SUBSAMPLING_FACTOR * mels;
        let xavier = (2.0 / (inputs + length) as f64).sqrt();
        Ok(Self {
            encoder,
            decoder,
            codebook: quantizer.param("codebooks", &[1, entries, length], Init::Normal(1.0))?,
            projection: quantizer.pp("proj").param(
                "weight",
                &[length, inputs],
                Init::Normal(xavier),
            )?,
            mask: frozen.pp("mask_processor").param(
                "mask_embedding",
                &[mels],
                Init::Normal(0.1),
            )?,
            config: config.clone(),
        })
    }

    /// Tokens of clean features (n, frames, mels), one for every eight frames: (n, frames / 8).
    pub fn tokens(&self, clean: &Tensor) -> Result<Tensor> {
        let (n, frames, mels) = clean.dims3()?;
        let stacked = clean
            .contiguous()?
            .reshape((n * frames / SUBSAMPLING_FACTOR, SUBSAMPLING_FACTOR * mels))?;
        let projected = stacked.matmul(&self.projection.tensor()?.t()?)?;
        let codes = unit(&self.codebook.tensor()?.squeeze(0)?)?;
        // The nearest of unit vectors has the largest product.
        let nearest = unit(&projected)?.matmul(&codes.t()?)?.argmax(D::Minus1)?;
        nearest.reshape((n, frames / SUBSAMPLING_FACTOR))
    }

    /// Encodes noisy features (n, frames, mels) with the frames in `mask` (n, frames) hidden: (n,
    /// frames / 8, width).
    pub fn encode(
        &self,
        noisy: &Tensor,
        mask: &Tensor,
        lengths: &[usize],
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let mask = mask.to_device(noisy.device())?.unsqueeze(2)?;
        let hidden = mask.broadcast_mul(&self.mask.tensor()?)?;
        let shown = noisy.broadcast_mul(&mask.affine(-1.0, 1.0)?)?;
        Ok(self.encoder.forward(&hidden.broadcast_add(&shown)?, lengths, pass)?.0)
    }

    /// Scores of all tokens for encoded frames: (n, frames / 8, tokens).
    pub fn scores(&self, encoded: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        self.decoder.forward(encoded, pass)
    }

    /// Scores and tokens of the masked groups of frames, one row each.
    pub fn masked(&self, scores: &Tensor, tokens: &Tensor, mask: &Tensor) -> Result<Comparison> {
        let (n, frames) = mask.dims2()?;
        let shares = mask
            .reshape((n * frames / SUBSAMPLING_FACTOR, SUBSAMPLING_FACTOR))?
            .mean(1)?
            .to_vec1::<f32>()?;
        let rows =
            shares.iter().enumerate().filter(|(_, share)| f64::from(**share) > MIN_MASKED_SHARE);
        let rows: Vec<u32> = rows.map(|(row, _)| row as u32).collect();
        let n_rows = rows.len();
        let rows = Tensor::from_vec(rows, n_rows, &Device::Cpu)?;
        Ok(Comparison {
            outputs: scores.flatten_to(1)?.index_select(&rows.to_device(scores.device())?, 0)?,
            targets: tokens.flatten_all()?.index_select(&rows.to_device(tokens.device())?, 0)?,
        })
    }

    /// Draws the mask over `frames` of an utterance of `length`; 1 = masked.
    fn draw(&self, key: Key, length: usize, frames: usize) -> Vec<f32> {
        let block = self.config.mask_block;
        let mut mask = vec![0.0; frames];
        if block as f64 >= MIN_MASKED_SHARE * length as f64 {
            mask[..SHORT_MASK.min(frames)].fill(1.0);
            return mask;
        }
        let n_starts = length - block;
        let starts: Vec<usize> = (0..n_starts)
            .filter(|&start| key.uniform(start as u64) < self.config.mask_prob)
            .collect();
        let one = [(key.uniform(n_starts as u64) * n_starts as f64) as usize];
        for &start in if starts.is_empty() { &one[..] } else { &starts } {
            mask[start..start + block].fill(1.0);
        }
        if !has_masked_token(&mask) {
            // Short blocks may lie across groups and hide none; a block that begins with a group
            // hides it.
            let start = one[0] / SUBSAMPLING_FACTOR * SUBSAMPLING_FACTOR;
            mask[start..start + block].fill(1.0);
        }
        mask
    }
}

/// True if enough frames of a group are masked for its token to be predicted.
fn has_masked_token(mask: &[f32]) -> bool {
    let is_masked = |group: &[f32]| {
        f64::from(group.iter().sum::<f32>()) > MIN_MASKED_SHARE * SUBSAMPLING_FACTOR as f64
    };
    mask.chunks_exact(SUBSAMPLING_FACTOR).any(is_masked)
}

/// Normalises rows to length 1.
fn unit(rows: &Tensor) -> Result<Tensor> {
    let length = rows.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    rows.broadcast_div(&length.maximum(1e-12)?)
}

impl Model for Nest {
    /// (n, 2, frames + 1, mels) -> scores of the tokens of noisy speech without a mask, (n, frames
    /// / 8, tokens).
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let (noisy, lengths) = frames_and_lengths(input, 1)?;
        let (n, frames, _) = noisy.dims3()?;
        let mask = Tensor::zeros((n, frames), noisy.dtype(), noisy.device())?;
        self.scores(&self.encode(&noisy, &mask, &lengths, pass)?, pass)
    }

    /// Scores and true tokens where a mask drawn for each utterance hides the speech.
    fn compare(
        &self,
        inputs: &Tensor,
        _: &Tensor,
        draws: &[Key],
        pass: &ForwardContext,
    ) -> Result<Comparison> {
        let ((clean, _), (noisy, lengths)) =
            (frames_and_lengths(inputs, 0)?, frames_and_lengths(inputs, 1)?);
        let (n, frames, _) = noisy.dims3()?;
        let utterances = draws.iter().zip(&lengths);
        let mask: Vec<f32> =
            utterances.flat_map(|(&key, &length)| self.draw(key, length, frames)).collect();
        let mask = Tensor::from_vec(mask, (n, frames), &Device::Cpu)?;
        let scores = self.scores(&self.encode(&noisy, &mask, &lengths, pass)?, pass)?;
        self.masked(&scores, &self.tokens(&clean)?, &mask)
    }

    fn onnx(&self, graph: &mut Graph, input: &Value) -> Result<Value> {
        let (noisy, lengths) = frames_and_lengths_onnx(graph, input, 1);
        let (encoded, _) = self.encoder.onnx(graph, &noisy, &lengths)?;
        self.decoder.onnx(graph, &encoded, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Purpose;

    #[test]
    fn every_utterance_has_a_masked_token_and_none_beyond_its_end() {
        let input = [2, 97, 16];
        let mut config = NestConfig {
            d_model: 8,
            n_heads: 2,
            n_layers: 1,
            subsampling_channels: 4,
            codebook_size: 8,
            ..NestConfig::default()
        };
        let nest = Nest::new(&config, &input, &Builder::new(1)).unwrap();
        let key = |sample| Key::new(1, Purpose::Draw, 0, sample);
        let mut shares = Vec::new();
        for sample in 0..200 {
            let mask = nest.draw(key(sample), 90, 96);
            assert!(mask[90..].iter().all(|&m| m == 0.0));
            let n = mask.iter().filter(|&&m| m > 0.0).count();
            assert!((40..=90).contains(&n), "{n}");
            shares.push(n as f64 / 90.0);
            assert_eq!(nest.draw(key(sample), 50, 96).iter().sum::<f32>(), 8.0, "a short one");
        }
        let mean = shares.iter().sum::<f64>() / 200.0;
        assert!((0.45..0.6).contains(&mean), "{mean}");
        // Blocks that hide less than a group where they begin in the middle of one.
        for block in 8..15 {
            config = NestConfig { mask_block: block, mask_prob: 0.001, ..config };
            let nest = Nest::new(&config, &input, &Builder::new(1)).unwrap();
            for sample in 0..200 {
                let length = 20 + sample as usize % 76;
                let mask = nest.draw(key(sample), length, 96);
                assert!(has_masked_token(&mask), "block {block}, utterance {sample}");
                assert!(mask[length..].iter().all(|&m| m == 0.0));
            }
        }
    }
}
