//! NEST (Huang et al., 2024, <https://arxiv.org/abs/2408.13106>), speech without labels: a `FastConformer` hears noisy speech
//! of which blocks are masked, and predicts there the tokens that a frozen random projection gives the clean speech
//! (BEST-RQ, Chiu et al., 2022). As in NVIDIA `NeMo`, but that every utterance has at least one masked token: `NeMo`'s
//! may have none, and a batch of such has no loss.
//!
//! Keys: `encoder.*` (see `fastconformer.rs`), `decoder.decoder_layers.0`, and the frozen `quantizer.codebooks`,
//! `quantizer.proj`, `mask_processor.mask_embedding`.
//!
//! A sample is (2, frames + 1, mels): features of clean and of noisy speech; the first number of the last row says how
//! many frames are more than padding.

use candle_core::{D, Device, Result, Tensor, bail};

use super::fastconformer::{FOLD, FastConformer};
use super::{Comparison, Model};
use crate::nn::{Builder, Conv1d, ConvShape, ForwardContext, Init, Linear, Param};
use crate::ops::Window;
use crate::plan::{ModelPlan, SpeechPlan};
use crate::rng::Key;

/// Share of the frames of a group that must be masked for its token to be asked for.
const MASKED: f64 = 0.8;
/// Masks of utterances that are hardly longer than a block.
const SHORT_MASK: usize = 8;

pub(super) fn build(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    Ok(Box::new(Nest::new(plan, builder)?))
}

pub(super) fn build_classifier(plan: &ModelPlan, builder: &Builder) -> Result<Box<dyn Model>> {
    let [_, frames, mels] = shape(plan)?;
    let encoder = if plan.freeze_backbone { builder.frozen() } else { builder.clone() };
    Ok(Box::new(Classifier {
        encoder: FastConformer::new(plan, &encoder.pp("encoder"), [frames, mels])?,
        head: Linear::new(&builder.pp("head"), plan.sequence.d_model, plan.outputs)?,
        in_eval: plan.backbone_in_eval(),
    }))
}

/// (kinds of speech, frames and a row for the length, mels)
fn shape(plan: &ModelPlan) -> Result<[usize; 3]> {
    match plan.input[..] {
        [2, frames, mels] if frames % FOLD == 1 => Ok([2, frames - 1, mels]),
        _ => bail!("it takes speech: use `data.name = \"speech\"`"),
    }
}

/// Pre-training.
pub struct Nest {
    sizes: SpeechPlan,
    encoder: FastConformer,
    decoder: Conv1d,
    codebook: Param,
    projection: Param,
    mask: Param,
}

impl Nest {
    /// Registers its parameters. `plan.input` is (2, frames + 1, mels).
    ///
    /// # Errors
    ///
    /// Sizes that do not fit each other.
    pub fn new(plan: &ModelPlan, builder: &Builder) -> Result<Self> {
        let [_, frames, mels] = shape(plan)?;
        let (sizes, width) = (plan.speech, plan.sequence.d_model);
        let encoder = FastConformer::new(plan, &builder.pp("encoder"), [frames, mels])?;
        let window = Window { stride: 1, padding: 0 };
        let shape =
            ConvShape { inputs: width, outputs: sizes.codebook_size, kernel: 1, window, groups: 1 };
        let decoder = Conv1d::new(&builder.pp("decoder").pp("decoder_layers").pp(0), shape)?;
        let (quantizer, frozen) = (builder.pp("quantizer").frozen(), builder.frozen());
        let (entries, length) = (sizes.codebook_size, sizes.code_dim);
        let inputs = FOLD * mels;
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
            sizes,
        })
    }

    /// The token of every eight frames of clean features (n, frames, mels): (n, frames / 8).
    ///
    /// # Errors
    ///
    /// A shape that does not fit.
    pub fn tokens(&self, clean: &Tensor) -> Result<Tensor> {
        let (n, frames, mels) = clean.dims3()?;
        let stacked = clean.contiguous()?.reshape((n * frames / FOLD, FOLD * mels))?;
        let projected = stacked.matmul(&self.projection.tensor()?.t()?)?;
        let codes = unit(&self.codebook.tensor()?.squeeze(0)?)?;
        // The nearest of unit vectors has the largest product.
        let nearest = unit(&projected)?.matmul(&codes.t()?)?.argmax(D::Minus1)?;
        nearest.reshape((n, frames / FOLD))
    }

    /// What the encoder makes of every eight frames of noisy features (n, frames, mels), of which those marked by `mask`
    /// (n, frames) are hidden: (n, frames / 8, width).
    ///
    /// # Errors
    ///
    /// A shape that does not fit.
    pub fn encode(
        &self,
        noisy: &Tensor,
        mask: &Tensor,
        lengths: &[usize],
        pass: &ForwardContext,
    ) -> Result<Tensor> {
        let mask = mask.unsqueeze(2)?;
        let hidden = mask.broadcast_mul(&self.mask.tensor()?)?;
        let shown = noisy.broadcast_mul(&mask.affine(-1.0, 1.0)?)?;
        Ok(self.encoder.forward(&hidden.broadcast_add(&shown)?, lengths, pass)?.0)
    }

    /// Scores of every token for what was encoded: (n, frames / 8, tokens).
    ///
    /// # Errors
    ///
    /// A shape that does not fit.
    pub fn scores(&self, encoded: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        self.decoder.forward(encoded, pass)
    }

    /// Scores and tokens of the masked groups of frames, one row each.
    ///
    /// # Errors
    ///
    /// A shape that does not fit.
    pub fn masked(&self, scores: &Tensor, tokens: &Tensor, mask: &Tensor) -> Result<Comparison> {
        let (n, frames) = mask.dims2()?;
        let shares = mask.reshape((n * frames / FOLD, FOLD))?.mean(1)?.to_vec1::<f32>()?;
        let rows = shares.iter().enumerate().filter(|(_, share)| f64::from(**share) > MASKED);
        let rows: Vec<u32> = rows.map(|(row, _)| row as u32).collect();
        let n_rows = rows.len();
        let rows = Tensor::from_vec(rows, n_rows, &Device::Cpu)?;
        Ok(Comparison {
            outputs: scores.flatten_to(1)?.index_select(&rows, 0)?,
            targets: tokens.flatten_all()?.index_select(&rows, 0)?,
        })
    }

    /// Which of `frames` are masked of an utterance of `length`.
    fn draw(&self, key: Key, length: usize, frames: usize) -> Vec<f32> {
        let block = self.sizes.mask_block;
        let mut mask = vec![0.0; frames];
        if block as f64 >= MASKED * length as f64 {
            mask[..SHORT_MASK.min(frames)].fill(1.0);
            return mask;
        }
        let places = length - block;
        let starts: Vec<usize> =
            (0..places).filter(|&place| key.uniform(place as u64) < self.sizes.mask_prob).collect();
        let one = [(key.uniform(places as u64) * places as f64) as usize];
        for &start in if starts.is_empty() { &one[..] } else { &starts } {
            mask[start..start + block].fill(1.0);
        }
        if !asks(&mask) {
            // Short blocks may lie across groups, none of which they hide; one that begins with a group hides it.
            let start = one[0] / FOLD * FOLD;
            mask[start..start + block].fill(1.0);
        }
        mask
    }
}

/// Whether so much of a group of frames is masked that its token is asked for.
fn asks(mask: &[f32]) -> bool {
    let is_masked = |group: &[f32]| f64::from(group.iter().sum::<f32>()) > MASKED * FOLD as f64;
    mask.chunks_exact(FOLD).any(is_masked)
}

/// Rows of length 1.
fn unit(rows: &Tensor) -> Result<Tensor> {
    let length = rows.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?;
    rows.broadcast_div(&length.maximum(1e-12)?)
}

/// One kind of speech (0 is clean, 1 noisy) of a batch, (n, frames, mels), and its lengths.
fn heard(inputs: &Tensor, kind: usize) -> Result<(Tensor, Vec<usize>)> {
    let (_, _, rows, _) = inputs.dims4()?;
    let speech = inputs.narrow(1, kind, 1)?.squeeze(1)?;
    let lengths = speech.narrow(1, rows - 1, 1)?.narrow(2, 0, 1)?.flatten_all()?;
    let lengths = lengths.to_vec1::<f32>()?.into_iter().map(|length| length as usize).collect();
    Ok((speech.narrow(1, 0, rows - 1)?.contiguous()?, lengths))
}

impl Model for Nest {
    /// (n, 2, frames + 1, mels) -> scores of the tokens of noisy speech without a mask, (n, frames / 8, tokens).
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let (noisy, lengths) = heard(input, 1)?;
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
        let ((clean, _), (noisy, lengths)) = (heard(inputs, 0)?, heard(inputs, 1)?);
        let (n, frames, _) = noisy.dims3()?;
        let utterances = draws.iter().zip(&lengths);
        let mask: Vec<f32> =
            utterances.flat_map(|(&key, &length)| self.draw(key, length, frames)).collect();
        let mask = Tensor::from_vec(mask, (n, frames), &Device::Cpu)?;
        let scores = self.scores(&self.encode(&noisy, &mask, &lengths, pass)?, pass)?;
        self.masked(&scores, &self.tokens(&clean)?, &mask)
    }
}

/// Mean of the encoder's frames, and a linear layer: a probe of what an encoder has learnt, or fine-tuning.
struct Classifier {
    encoder: FastConformer,
    head: Linear,
    /// Whether the encoder is not in training: no dropout, and its own statistics.
    in_eval: bool,
}

impl Model for Classifier {
    /// (n, 2, frames + 1, mels) -> (n, classes)
    fn forward(&self, input: &Tensor, pass: &ForwardContext) -> Result<Tensor> {
        let (speech, lengths) = heard(input, 1)?;
        let inside = if self.in_eval { pass.evaluating() } else { *pass };
        let (encoded, lengths) = self.encoder.forward(&speech, &lengths, &inside)?;
        let frames = encoded.dim(1)?;
        let share = |&length: &usize| {
            let length = length.clamp(1, frames);
            (0..frames).map(move |frame| if frame < length { 1.0 / length as f32 } else { 0.0 })
        };
        let shares: Vec<f32> = lengths.iter().flat_map(share).collect();
        let shares = Tensor::from_vec(shares, (lengths.len(), frames, 1), &Device::Cpu)?;
        self.head.forward(&encoded.broadcast_mul(&shares)?.sum(1)?, pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Purpose;

    #[test]
    fn every_utterance_has_a_masked_token_and_none_beyond_its_end() {
        let mut plan = crate::model::registry::tests::plan("nest", &[2, 97, 16], 1);
        plan.sequence.d_model = 8;
        plan.sequence.n_heads = 2;
        plan.sequence.n_layers = 1;
        plan.speech = SpeechPlan { subsampling_channels: 4, codebook_size: 8, ..plan.speech };
        let nest = Nest::new(&plan, &Builder::new(1)).unwrap();
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
            plan.speech = SpeechPlan { mask_block: block, mask_prob: 0.001, ..plan.speech };
            let nest = Nest::new(&plan, &Builder::new(1)).unwrap();
            for sample in 0..200 {
                let length = 20 + sample as usize % 76;
                let mask = nest.draw(key(sample), length, 96);
                assert!(asks(&mask), "block {block}, utterance {sample}");
                assert!(mask[length..].iter().all(|&m| m == 0.0));
            }
        }
    }
}
