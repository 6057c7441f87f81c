//! Forward and backward of one batch.

use std::sync::Arc;

use candle_core::{Result, Tensor};

use crate::data::Batch;
use crate::data::sampler::MicroBatch;
use crate::engine::batch_to_device::DeviceBatch;
use crate::engine::correct::correct;
use crate::engine::vote::PassReport;
use crate::loss::Loss;
use crate::model::{Comparison, Model};
use crate::nn::{ForwardContext, Mode, Params, Track};
use crate::ops::{BatchGroup, GradientSink};
use crate::plan::Plan;
use crate::rng::{Key, Purpose};

/// What passes have in common: threads share it.
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

/// What one forward pass found.
pub(super) struct Found {
    /// The mean loss times the pass's share of the step and the loss scale: what backward starts
    /// from.
    scaled: Tensor,
    report: PassReport,
}

impl Passes<'_> {
    /// What the layers need to know about a pass. Running statistics follow the first shard only,
    /// as DDP's `broadcast_buffers` keeps those of rank 0.
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
            sync_batchnorm,
        }
    }

    /// What the model may draw for each sample of a batch.
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
        placed: &DeviceBatch,
        sink: &Arc<dyn GradientSink>,
        sync_batchnorm: Option<BatchGroup>,
    ) -> Result<Found> {
        let context = self.context(micro_batch, sync_batchnorm);
        let draws = self.draws(batch);
        self.params.begin_pass(Some(sink));
        let found = self.found(micro_batch, placed, &draws, &context);
        if found.is_err() {
            self.params.end_pass();
        }
        found
    }

    fn found(
        &self,
        micro_batch: &MicroBatch,
        DeviceBatch { inputs, targets }: &DeviceBatch,
        draws: &[Key],
        context: &ForwardContext,
    ) -> Result<Found> {
        let Comparison { outputs, targets } =
            self.model.compare(inputs, targets, draws, context)?;
        let loss = self.loss.mean(&outputs, &targets)?;
        let correct = correct(&self.plan.loss, &outputs, &targets)?;
        let value = f64::from(scalar(&loss)?);
        // Full passes weigh 1, as in PyTorch; the short ones at the end of an epoch weigh less, and
        // those with labels that do not count.
        let samples = micro_batch.samples.len();
        let weight = self.loss.weight(&targets, samples)?;
        // Where nothing counts the gradient is zero, but it must reach the parameters.
        let share = if weight > 0.0 { weight } else { 1.0 };
        let factor = share / self.plan.batch.size.count() as f64 * self.loss_scale;
        let index = micro_batch.index_in_step;
        let report = PassReport::new(index, samples as u64, value, correct);
        Ok(Found { scaled: (loss * factor)?, report: report.weighing(weight) })
    }

    /// Backward of one pass; gradients go to the sink.
    pub(super) fn backward(&self, found: Found) -> Result<PassReport> {
        let done = found.scaled.backward();
        self.params.end_pass();
        done.map(|_| found.report)
    }
}

/// What the model may draw for each of `samples`: nothing that depends on the ranks.
pub(super) fn draws(plan: &Plan, epoch: u64, samples: &[u32]) -> Vec<Key> {
    let key = |&sample: &u32| Key::new(plan.seed, Purpose::Draw, epoch, u64::from(sample));
    samples.iter().map(key).collect()
}

/// The value of a scalar. On a GPU this waits for the device: the one synchronisation of a pass.
pub(super) fn scalar(loss: &Tensor) -> Result<f32> {
    loss.to_scalar()
}
