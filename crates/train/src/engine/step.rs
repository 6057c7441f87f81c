//! The training step, in the order of its mathematics.

use crate::data::sampler::MicroBatch;
use crate::data::{self, Batch};
use crate::engine::optimizer_step::MeanGradient;
use crate::engine::pass::{ForwardResult, PassInput, Passes, Step};
use crate::engine::rank_stats::RankReport;
use crate::engine::straggler::Stragglers;
use crate::engine::vote::{PassReport, ReducedStep, Totals, Vote, exchange};
use crate::engine::{Clock, Engine, Error};
use crate::event::{Phase, Stop};

/// Returns the batch of each pass of a step, in order.
pub type NextBatch<'a> = &'a mut dyn FnMut() -> Result<Batch, data::Error>;

/// Result of a step, equal on all ranks.
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
    /// True if the parameters moved.
    pub updated: bool,
    /// Samples of all ranks.
    pub samples: u64,
    /// The strongest request of any rank.
    pub stop_request: Option<Stop>,
}

impl Engine {
    /// Runs one step: forward and backward of this rank's `micro_batches`, the mean gradient over
    /// all ranks, one update. `stop_request` is called, when the passes are made, for what this
    /// rank would like to happen at the step boundary.
    ///
    /// # Errors
    ///
    /// A tensor operation, a sample or another rank failed; loss or gradient are not finite and
    /// `train.on_non_finite = "stop"`, or the loss is past `fault.divergence_threshold`. Parameters
    /// stand as before the step, unless it failed after the update, in what follows it: the engine
    /// is then of no more use.
    pub fn step(
        &mut self,
        micro_batches: &[MicroBatch],
        next: NextBatch<'_>,
        stop_request: &dyn Fn() -> Option<Stop>,
    ) -> Result<StepReport, Error> {
        let step = self.begin_step();
        let mut reports = self.forward_backward(&step, micro_batches, next)?;
        self.reduce(&step)?;
        // Alone on a GPU, a rank reads what its passes found when the update is under way.
        let is_queued = self.update_ahead(&step, &mut reports)?;
        let reduced = self.exchange_votes(&step, reports, stop_request())?;
        let gradient = self.unscale(&step, &reduced);
        let updated = self.check(&step, &reduced, &gradient)?;
        match (updated, is_queued) {
            (true, true) => self.count_update(&reduced.votes),
            (true, false) => {
                let clip = self.clip(&gradient);
                self.update(&step, &reduced, clip)?;
            }
            (false, _) => {}
        }
        self.finish_step(&step, &reduced);
        self.average_weights()?;
        self.look_ahead()?;
        self.freeze_and_unfreeze()?;
        Ok(self.report(&step, &reduced, &gradient, updated))
    }

    /// Forward and backward of each micro-batch of this rank; gradients gather in the buckets.
    fn forward_backward(
        &mut self,
        step: &Step,
        micro_batches: &[MicroBatch],
        next: NextBatch<'_>,
    ) -> Result<Vec<PassReport>, Error> {
        if self.joint.as_ref().is_some_and(|joint| joint.shards() > 1) {
            return self.shards_at_once(step, micro_batches, next);
        }
        let mut reports = Vec::with_capacity(micro_batches.len());
        for (position, micro_batch) in micro_batches.iter().enumerate() {
            let following = micro_batches.get(position + 1);
            if following.is_none() {
                self.reducer.begin_last_pass();
            }
            let batch = self.load(step, micro_batch, next)?;
            if let Some(batch) = &batch {
                let report = self.pass(step, micro_batch, batch)?;
                reports.push(report.with_unreadable(batch.unreadable));
            }
            self.finish_joint_pass(step, batch.is_some())?;
            if following.is_some_and(|following| following.shard != micro_batch.shard) {
                self.reducer.end_shard()?;
            }
        }
        Ok(reports)
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
    pub(super) fn load(
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

    /// Forward and backward: in one launch, where passes are replayed as a CUDA graph.
    fn pass(
        &mut self,
        step: &Step,
        micro_batch: &MicroBatch,
        batch: &Batch,
    ) -> Result<PassReport, Error> {
        #[cfg(feature = "cuda")]
        if let Some(replayed) = self.replay(step, micro_batch, batch)? {
            return Ok(replayed);
        }
        let found = self.forward(step, micro_batch, batch)?;
        self.backward(step, found)
    }

    /// Forward of one pass. [`Engine::backward`] follows, unless this fails.
    fn forward(
        &mut self,
        step: &Step,
        micro_batch: &MicroBatch,
        batch: &Batch,
    ) -> Result<ForwardResult, Error> {
        (self.observer)(step.number, Phase::Forward);
        let found = self.timed(
            |time| &mut time.forward,
            |engine| {
                let placed = engine.batch_on_device(batch)?;
                let placed = PassInput {
                    #[cfg(feature = "cuda")]
                    found: engine.reducer.next_pass().transpose()?,
                    ..PassInput::from(&placed)
                };
                let group = engine.joint.as_ref().map(|joint| joint.group(0));
                let passes = engine.passes(step.number, step.loss_scale);
                passes.forward(micro_batch, batch, &placed, &engine.sink, group)
            },
        );
        self.count_waiting(|time| &mut time.forward);
        found.map_err(|source| self.pass_failed("forward", step.number, source))
    }

    /// Backward of one pass; gradients go to the buckets.
    fn backward(&mut self, step: &Step, found: ForwardResult) -> Result<PassReport, Error> {
        (self.observer)(step.number, Phase::Backward);
        let done = self.timed(
            |time| &mut time.backward,
            |engine| engine.passes(step.number, step.loss_scale).backward(found),
        );
        self.count_waiting(|time| &mut time.backward);
        done.map_err(|source| self.pass_failed("backward", step.number, source))
    }

    /// Returns the inputs that all passes of a step share.
    pub(super) fn passes(&self, step: u64, loss_scale: f64) -> Passes<'_> {
        Passes {
            plan: &self.plan,
            model: self.model.as_ref(),
            params: &self.params,
            loss: self.loss.as_ref(),
            step,
            loss_scale,
        }
    }

    /// Sums gradients over the ranks.
    fn reduce(&mut self, step: &Step) -> Result<(), Error> {
        (self.observer)(step.number, Phase::Reducing);
        let waited = self.reducer.finish_step()?;
        self.time.communication += waited.as_secs_f64();
        Ok(())
    }

    /// On the CPU it is known what the passes found, and parameters are moved later.
    #[cfg(not(feature = "cuda"))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as with the feature")]
    fn update_ahead(&mut self, _: &Step, _: &mut [PassReport]) -> Result<bool, Error> {
        Ok(false)
    }

    /// Exchanges the results and requests of all ranks.
    fn exchange_votes(
        &mut self,
        step: &Step,
        passes: Vec<PassReport>,
        stop_request: Option<Stop>,
    ) -> Result<ReducedStep, Error> {
        let waited = (1e6 * (self.time.data - step.waited_before)) as u64;
        let vote = Vote {
            passes,
            unused: self.reducer.unused(),
            stop_request,
            waited,
            asks: self.stats.is_due(self.collective.rank()),
            done: self.stats.is_asked().then(|| RankReport::now(self.time, &self.device)),
        };
        let collective = self.collective.clone();
        let votes =
            self.timed(|time| &mut time.communication, |_| exchange(collective.as_ref(), &vote))?;
        let totals = Totals::over(votes.iter().flat_map(|vote| &vote.passes));
        Ok(ReducedStep { votes, totals })
    }

    fn report(
        &self,
        step: &Step,
        ReducedStep { votes, totals }: &ReducedStep,
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
            stop_request: votes.iter().filter_map(|vote| vote.stop_request).max(),
        }
    }

    /// Moves the run's progress on by the step.
    fn finish_step(&mut self, step: &Step, reduced: &ReducedStep) {
        self.count(&reduced.totals);
        if let Some(stragglers) = &mut self.stragglers {
            let waits: Vec<f64> =
                reduced.votes.iter().map(|vote| 1e-6 * vote.waited as f64).collect();
            let seconds = step.started.seconds();
            let found = stragglers.step(step.number, &self.collective.lags(), &waits, seconds);
            self.straggler = found.or(self.straggler.take());
        }
        let late = self.stragglers.as_ref().map_or(&[][..], Stragglers::late_seconds);
        let votes = &reduced.votes;
        let reports: Option<Vec<RankReport>> = votes.iter().map(|vote| vote.done).collect();
        self.stats.record(
            step.number,
            votes.iter().any(|vote| vote.asks),
            reports.as_deref(),
            late,
        );
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
