//! Forward and backward of one batch.

use std::sync::Arc;

use candle_core::{D, Device, Result, Tensor};

use crate::data::Batch;
use crate::data::sampler::MicroBatch;
use crate::engine::batch_to_device::DeviceBatch;
use crate::engine::rank_stats::Clock;
use crate::engine::vote::PassReport;
use crate::loss::{Loss, counted, rows};
use crate::model::{Comparison, Model};
use crate::nn::{ForwardContext, Mode, Params, Track};
use crate::ops::{BatchGroup, GradientSink, count_correct};
use crate::optim::Rates;
use crate::plan::{LossPlan, Plan};
use crate::rng::{Key, Purpose};

/// A step under way.
pub(super) struct Step {
    /// From 1.
    pub(super) number: u64,
    pub(super) rates: Rates,
    pub(super) loss_scale: f64,
    pub(super) started: Clock,
    /// Seconds that the run had waited for data before the step.
    pub(super) waited_before: f64,
}

/// Inputs that all passes of a step share, also between threads.
#[derive(Clone, Copy)]
pub(super) struct Passes<'a> {
    pub(super) plan: &'a Plan,
    pub(super) model: &'a dyn Model,
    pub(super) params: &'a Params,
    pub(super) loss: &'a dyn Loss,
    /// From 1.
    pub(super) step: u64,
    pub(super) loss_scale: f64,
}

/// A batch as the model sees it, and where a GPU notes what it finds; without that place the CPU
/// waits for it.
pub(super) struct PassInput<'a> {
    pub(super) batch: &'a DeviceBatch,
    #[cfg(feature = "cuda")]
    pub(super) found: Option<crate::ops::cuda::PassNumbers>,
}

impl<'a> From<&'a DeviceBatch> for PassInput<'a> {
    fn from(batch: &'a DeviceBatch) -> Self {
        Self {
            batch,
            #[cfg(feature = "cuda")]
            found: None,
        }
    }
}

/// Results of a forward pass.
pub(super) struct ForwardResult {
    /// The mean loss times the pass's share of the step and the loss scale: what backward starts
    /// from.
    scaled: Tensor,
    report: PassReport,
}

/// The loss of a pass, its value, and the answers that are right and that were asked for. What a
/// GPU notes is not known yet.
pub(super) struct PassLoss {
    pub(super) loss: Tensor,
    pub(super) value: f64,
    pub(super) correct: [u64; 2],
}

impl Passes<'_> {
    /// Returns the context for the layers. Running statistics follow the first shard only, as DDP's
    /// `broadcast_buffers` keeps those of rank 0.
    pub(super) fn context(
        &self,
        micro_batch: &MicroBatch,
        sync_batchnorm: Option<BatchGroup>,
    ) -> ForwardContext {
        let index = micro_batch.index_in_step as u64;
        let key = Key::new(self.plan.seed, Purpose::Dropout, self.step, index);
        let track = if micro_batch.shard == 0 { Track::Momentum } else { Track::Nothing };
        ForwardContext {
            mode: Mode::Train { key, track },
            precision: self.plan.precision,
            convolutions: self.plan.convolutions,
            activation_checkpointing: self.plan.activation_checkpointing,
            lengths: None,
            segments: None,
            without_adapters: false,
            sync_batchnorm,
        }
    }

    /// Returns a random key for each sample of a batch, for models that draw.
    pub(super) fn draws(&self, batch: &Batch) -> Vec<Key> {
        let epoch = (self.step - 1) / self.plan.length.steps_per_epoch.max(1);
        draws(self.plan, epoch, &batch.samples)
    }

    /// Forward of `batch`, which was `placed` where the model computes. [`Passes::backward`]
    /// follows, unless this fails. Gradients will go to `sink`.
    pub(super) fn forward(
        &self,
        micro_batch: &MicroBatch,
        batch: &Batch,
        placed: &PassInput<'_>,
        sink: &Arc<dyn GradientSink>,
        sync_batchnorm: Option<BatchGroup>,
    ) -> Result<ForwardResult> {
        let segments = batch.segments.clone();
        let context = ForwardContext { segments, ..self.context(micro_batch, sync_batchnorm) };
        let draws = self.draws(batch);
        self.params.begin_pass(Some(sink));
        let found = self.run_forward(micro_batch, placed, &draws, &context);
        if found.is_err() {
            self.params.end_pass();
        }
        found
    }

    fn run_forward(
        &self,
        micro_batch: &MicroBatch,
        placed: &PassInput<'_>,
        draws: &[Key],
        context: &ForwardContext,
    ) -> Result<ForwardResult> {
        let DeviceBatch { inputs, targets } = placed.batch;
        let Comparison { outputs, targets } =
            self.model.compare(inputs, targets, draws, context)?;
        // Full passes weigh 1, as in PyTorch; the short ones at the end of an epoch weigh less, and
        // those with labels that do not count.
        let samples = micro_batch.samples.len();
        let weight = self.loss.weight(&targets, samples)?;
        // Where nothing counts the gradient is zero, but it must reach the parameters.
        let share = if weight > 0.0 { weight } else { 1.0 };
        let factor = share / self.plan.batch.size.count() as f64 * self.loss_scale;
        let PassLoss { loss, value, correct } =
            self.measured(&outputs, &targets, weight, placed)?;
        let index = micro_batch.index_in_step;
        let report = PassReport::new(index, samples as u64, value, correct);
        let scaled = if factor == 1.0 { loss } else { (loss * factor)? };
        Ok(ForwardResult { scaled, report: report.with_weight(weight) })
    }

    fn measured(
        &self,
        outputs: &Tensor,
        targets: &Tensor,
        weight: f64,
        placed: &PassInput<'_>,
    ) -> Result<PassLoss> {
        #[cfg(feature = "cuda")]
        if let Some(found) = &placed.found {
            return self.noted(outputs, targets, weight, found);
        }
        let _ = (weight, placed);
        let loss = self.loss.mean(outputs, targets)?;
        let correct = correct(&self.plan.loss, outputs, targets)?;
        Ok(PassLoss { value: f64::from(scalar(&loss)?), loss, correct })
    }

    /// Backward of one pass; gradients go to the sink.
    pub(super) fn backward(&self, found: ForwardResult) -> Result<PassReport> {
        let done = found.scaled.backward();
        self.params.end_pass();
        done.map(|_| found.report)
    }
}

/// Returns a random key for each of `samples`, which does not depend on the ranks.
pub(super) fn draws(plan: &Plan, epoch: u64, samples: &[u32]) -> Vec<Key> {
    let key = |&sample: &u32| Key::new(plan.seed, Purpose::Draw, epoch, u64::from(sample));
    samples.iter().map(key).collect()
}

/// The value of a scalar. On a GPU this waits for the device.
pub(super) fn scalar(loss: &Tensor) -> Result<f32> {
    loss.to_scalar()
}

/// Number of answers whose largest output is that of their label, and of all answers; 0 for
/// regression.
pub(super) fn correct(plan: &LossPlan, outputs: &Tensor, targets: &Tensor) -> Result<[u64; 2]> {
    if !plan.has_classes() {
        return Ok([0, 0]);
    }
    if targets.dtype().is_float() {
        // Of a mixture the class with the larger share is right.
        let labels = targets.argmax(D::Minus1)?.to_device(&Device::Cpu)?;
        return Ok([count_correct(outputs, &labels)? as u64, labels.elem_count() as u64]);
    }
    let (outputs, targets) = rows(outputs, targets)?;
    let right = count_correct(&outputs, &targets)?;
    Ok([right as u64, counted(&targets)? as u64])
}
