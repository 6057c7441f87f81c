//! The training step, in the order of its mathematics.

use candle_core::Tensor;

use crate::data::{self, Batch, sampler::MicroBatch};
use crate::engine::update::MeanGradient;
use crate::engine::vote::{PassReport, Totals, Vote, exchange};
use crate::engine::{Clock, Engine, Error, StopRequest, loss};
use crate::launch::Phase;
use crate::model::Comparison;
use crate::nn::{ForwardContext, Mode};
use crate::optim::Rates;
use crate::plan::Plan;
use crate::rng::{Key, Purpose};

/// Gives the batch of each pass of a step, in order.
pub type NextBatch<'a> = &'a mut dyn FnMut() -> Result<Batch, data::Error>;

/// What a step did, equal on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// The step, from 1.
    pub step: u64,
    /// Mean over the global batch.
    pub loss: f64,
    /// Share of right answers; classifiers only.
    pub accuracy: Option<f64>,
    /// Learning rate.
    pub lr: f64,
    /// L2 norm of the mean gradient before clipping.
    pub grad_norm: f64,
    /// Loss scale after the step.
    pub loss_scale: Option<f64>,
    /// Whether the parameters moved.
    pub updated: bool,
    /// Samples of all ranks.
    pub samples: u64,
    /// The strongest request of any rank.
    pub stop_request: StopRequest,
}

/// A step under way.
pub(super) struct Step {
    /// From 1.
    pub(super) number: u64,
    pub(super) rates: Rates,
    pub(super) loss_scale: f64,
    started: Clock,
    /// Seconds that the run had waited for data before the step.
    waited_before: f64,
}

/// What one forward pass found.
struct Loss {
    /// The mean loss times the pass's share of the step and the loss scale: what backward starts from.
    scaled: Tensor,
    report: PassReport,
}

/// What all ranks know of the step, once gradients are reduced.
pub(super) struct Reduced {
    /// Of each rank.
    pub(super) votes: Vec<Vote>,
    pub(super) totals: Totals,
}

impl Engine {
    /// One step: forward and backward of this rank's `micro_batches`, the mean gradient over all ranks, one update.
    /// `stop_request` is what this rank would like to happen at the step boundary.
    ///
    /// # Errors
    ///
    /// A tensor operation, a sample or another rank failed; loss or gradient are not finite and
    /// `train.on_non_finite = "stop"`, or the loss is past `fault.divergence_threshold`. Parameters then stand as before the step.
    pub fn step(
        &mut self,
        micro_batches: &[MicroBatch],
        next: NextBatch<'_>,
        stop_request: StopRequest,
    ) -> Result<StepReport, Error> {
        let step = self.begin_step();
        let mut reports = Vec::with_capacity(micro_batches.len());
        for (position, micro_batch) in micro_batches.iter().enumerate() {
            let following = micro_batches.get(position + 1);
            if following.is_none() {
                self.reducer.begin_last_pass();
            }
            if let Some(batch) = self.load(&step, micro_batch, next)? {
                let report = if let Some(report) = self.replay(&step, micro_batch, &batch)? {
                    report
                } else {
                    let loss = self.forward(&step, micro_batch, &batch)?;
                    self.backward(&step, loss)?
                };
                reports.push(report.missing(batch.unreadable));
            }
            if following.is_some_and(|following| following.shard != micro_batch.shard) {
                self.reducer.end_shard()?;
            }
        }
        let reduced = self.reduce(&step, reports, stop_request)?;
        let gradient = self.unscale(&step, &reduced);
        let updated = self.check(&step, &reduced, &gradient)?;
        if updated {
            let clip = self.clip(&gradient);
            self.update(&step, &reduced, clip)?;
        }
        self.finish_step(&step, &reduced);
        self.enter_phase()?;
        Ok(self.report(&step, &reduced, &gradient, updated))
    }

    /// No gradient is left of the step before.
    fn begin_step(&mut self) -> Step {
        let started = Clock::start();
        let rates = self.next_rates();
        self.reducer.begin_step();
        Step {
            number: self.state.step + 1,
            rates,
            loss_scale: self.state.scaler.map_or(1.0, |scaler| scaler.scale),
            started,
            waited_before: self.time.data,
        }
    }

    /// The batch of a pass; `None` where the last step of an epoch has no samples for it.
    fn load(
        &mut self,
        step: &Step,
        micro_batch: &MicroBatch,
        next: NextBatch<'_>,
    ) -> Result<Option<Batch>, Error> {
        if micro_batch.samples.is_empty() {
            return Ok(None);
        }
        (self.observer)(step.number, Phase::LoadingData);
        let batch = self.timed(|time| &mut time.data, |_| next())?;
        Ok(Some(batch))
    }

    /// Forward and backward in one launch, where passes are replayed as a CUDA graph.
    #[cfg(not(feature = "cuda"))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as with the feature")]
    fn replay(&mut self, _: &Step, _: &MicroBatch, _: &Batch) -> Result<Option<PassReport>, Error> {
        Ok(None)
    }

    /// Forward of one pass. [`Engine::backward`] follows, unless this fails.
    fn forward(
        &mut self,
        step: &Step,
        micro_batch: &MicroBatch,
        batch: &Batch,
    ) -> Result<Loss, Error> {
        let context = self.context(step, micro_batch);
        let draws = self.draws(step, batch);
        (self.observer)(step.number, Phase::Forward);
        self.params.begin_pass(Some(&self.sink));
        let loss = self.timed(
            |time| &mut time.forward,
            |engine| {
                let (inputs, targets) = engine.batch_on_device(batch)?;
                let Comparison { outputs, targets } =
                    engine.model.compare(&inputs, &targets, &draws, &context)?;
                let loss = engine.loss.mean(&outputs, &targets)?;
                let correct = loss::correct(&engine.plan.loss, &outputs, &targets)?;
                let value = f64::from(loss::scalar(&loss)?);
                // Full passes weigh 1, as in PyTorch; the short ones at the end of an epoch weigh less, and those with
                // labels that do not count.
                let samples = micro_batch.samples.len();
                let weight = loss::weight(&engine.plan.loss, &targets, samples)?;
                // Where nothing counts the gradient is zero, but it must reach the parameters.
                let share = if weight > 0.0 { weight } else { 1.0 };
                let factor = share / engine.plan.batch.size.count() as f64 * step.loss_scale;
                let index = micro_batch.index_in_step;
                let report = PassReport::new(index, samples as u64, value, correct);
                Ok(Loss { scaled: (loss * factor)?, report: report.weighing(weight) })
            },
        );
        loss.map_err(|source| {
            self.params.end_pass();
            Error::Tensor { phase: "forward", step: step.number, source }
        })
    }

    /// Backward of one pass; gradients go to the buckets.
    fn backward(&mut self, step: &Step, loss: Loss) -> Result<PassReport, Error> {
        (self.observer)(step.number, Phase::Backward);
        let done = self.timed(|time| &mut time.backward, |_| loss.scaled.backward());
        self.params.end_pass();
        done.map_err(|source| Error::Tensor { phase: "backward", step: step.number, source })?;
        Ok(loss.report)
    }

    /// Sums gradients over the ranks, and lets all of them know what each saw and asks for.
    fn reduce(
        &mut self,
        step: &Step,
        passes: Vec<PassReport>,
        stop_request: StopRequest,
    ) -> Result<Reduced, Error> {
        (self.observer)(step.number, Phase::Reducing);
        let waited = self.reducer.finish_step()?;
        self.time.communication += waited.as_secs_f64();
        let waited = (1e6 * (self.time.data - step.waited_before)) as u64;
        let vote = Vote { passes, unused: self.reducer.unused(), stop_request, waited };
        let collective = self.collective.clone();
        let votes =
            self.timed(|time| &mut time.communication, |_| exchange(collective.as_ref(), &vote))?;
        let totals = Totals::over(votes.iter().flat_map(|vote| &vote.passes));
        Ok(Reduced { votes, totals })
    }

    fn report(
        &self,
        step: &Step,
        Reduced { votes, totals }: &Reduced,
        gradient: &MeanGradient,
        updated: bool,
    ) -> StepReport {
        let [right, asked] = totals.correct;
        let accuracy = right as f64 / asked.max(1) as f64;
        StepReport {
            step: step.number,
            loss: totals.loss,
            accuracy: self.plan.loss.has_classes().then_some(accuracy),
            lr: step.rates.lr,
            grad_norm: gradient.norm.norm(),
            loss_scale: self.state.scaler.map(|scaler| scaler.scale),
            updated,
            samples: totals.samples,
            stop_request: votes.iter().map(|vote| vote.stop_request).max().unwrap_or_default(),
        }
    }

    /// What the layers need to know about a pass. Running statistics follow the first shard only, as
    /// DDP's `broadcast_buffers` keeps those of rank 0.
    pub(super) fn context(&self, step: &Step, micro_batch: &MicroBatch) -> ForwardContext {
        let index = micro_batch.index_in_step as u64;
        let key = Key::new(self.plan.seed, Purpose::Dropout, step.number, index);
        ForwardContext {
            mode: Mode::Train { key, track_statistics: micro_batch.shard == 0 },
            precision: self.plan.precision,
            convolutions: self.plan.convolutions,
            activation_checkpointing: self.plan.activation_checkpointing,
        }
    }

    /// What the model may draw for each sample of a batch.
    pub(super) fn draws(&self, step: &Step, batch: &Batch) -> Vec<Key> {
        let epoch = (step.number - 1) / self.plan.length.steps_per_epoch.max(1);
        draws(&self.plan, epoch, &batch.samples)
    }

    /// Moves the run's progress on by the step.
    fn finish_step(&mut self, step: &Step, reduced: &Reduced) {
        self.count(&reduced.totals);
        if let Some(stragglers) = &mut self.stragglers {
            let waits: Vec<f64> =
                reduced.votes.iter().map(|vote| 1e-6 * vote.waited as f64).collect();
            let seconds = step.started.seconds();
            let found = stragglers.step(step.number, &self.collective.lags(), &waits, seconds);
            self.straggler = found.or(self.straggler.take());
        }
    }

    fn count(&mut self, totals: &Totals) {
        self.state.step += 1;
        let sums = &mut self.state.sums;
        let [right, asked] = totals.correct;
        sums.correct += right;
        sums.answers += asked;
        sums.samples += totals.samples;
        sums.unreadable += totals.unreadable;
        if totals.loss.is_finite() {
            sums.loss += totals.loss * totals.weight;
            sums.weight += totals.weight;
        }
    }
}

/// What the model may draw for each of `samples`: nothing that depends on the ranks.
pub(super) fn draws(plan: &Plan, epoch: u64, samples: &[u32]) -> Vec<Key> {
    let key = |&sample: &u32| Key::new(plan.seed, Purpose::Draw, epoch, u64::from(sample));
    samples.iter().map(key).collect()
}
