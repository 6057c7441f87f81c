//! batch -> forward -> backward -> reduce -> update.
//!
//! [`Engine::step`] is the training step in the order of its mathematics. All decisions (skip, stop,
//! learning rate) are taken on reduced values, so every rank takes the same one.

mod average;
pub mod buckets;
#[cfg(any(feature = "cuda", test))]
mod capture;
mod clock;
mod compare;
#[cfg(any(feature = "cuda", test))]
mod host_staged_reducer;
mod error;
mod evaluate;
#[cfg(feature = "cuda")]
mod graph_pass;
mod loss;
#[cfg(feature = "cuda")]
mod on_gpu;
mod place;
mod reduce;
mod reducer;
mod rehearse;
mod scaler;
mod start;
mod state;
mod straggler;
mod update;
mod vote;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) use average::swap_averages;
pub use clock::Clock;
pub use error::Error;
pub use evaluate::{Evaluation, Split};
pub use rehearse::{Needs, rehearse};
pub use scaler::Scaler;
pub use state::{EarlyStopping, EpochSums, TrainState, is_better};
pub use vote::StopRequest;
pub(crate) use vote::exchange;

use candle_core::Device;

use crate::collective::Collective;
use crate::data::{Batch, sampler};
use crate::event::{Straggler, TimeShares};
use crate::launch::Phase;
use crate::loss::Loss;
use crate::metric::Metric;
use crate::model::{Comparison, Model};
use crate::nn::{ForwardContext, Mode, Params};
use crate::ops::GradientSink;
use crate::optim::{GradientNorm, Moments, Optimizer, Rates, Schedule, Scheduler};
use crate::plan::Plan;
use crate::rng::{Key, Purpose};
use compare::Compared;
use reduce::Reduce;
use straggler::Stragglers;
use vote::{PassReport, Totals, Vote};

/// Trains one rank's replica of a model together with the other ranks.
pub struct Engine {
    plan: Arc<Plan>,
    model: Box<dyn Model>,
    params: Params,
    loss: Box<dyn Loss>,
    metrics: Vec<Arc<dyn Metric>>,
    optimizer: Box<dyn Optimizer>,
    scheduler: Box<dyn Scheduler>,
    moments: Vec<Moments>,
    collective: Arc<dyn Collective>,
    reducer: Box<dyn Reduce>,
    /// Where the model computes.
    device: Device,
    sink: Arc<dyn GradientSink>,
    state: TrainState,
    time: TimeShares,
    observer: Observer,
    compared: Compared,
    /// The step after which the optimizer's state was copied to the CPU's memory.
    home: Option<u64>,
    /// Rank 0's, in a group.
    stragglers: Option<Stragglers>,
    straggler: Option<Straggler>,
    /// Passes as one launch, where the plan allows it.
    #[cfg(feature = "cuda")]
    graph: Option<graph_pass::GraphPass>,
    /// Something that the run should say once.
    notice: Option<String>,
}

/// What an engine trains, made by the kinds that the plan chooses.
pub struct Components {
    /// The model.
    pub model: Box<dyn Model>,
    /// Its parameters and buffers.
    pub params: Params,
    /// What is minimised.
    pub loss: Box<dyn Loss>,
    /// What evaluations measure beside it.
    pub metrics: Vec<Arc<dyn Metric>>,
    /// What moves the parameters.
    pub optimizer: Box<dyn Optimizer>,
    /// The learning rate over time.
    pub scheduler: Box<dyn Scheduler>,
}

/// Is told what a rank is doing: the step (from 1) and the phase.
pub type Observer = Box<dyn Fn(u64, Phase) + Send>;

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

/// Gives the batch of each pass of a step, in order.
pub type NextBatch<'a> = &'a mut dyn FnMut() -> Result<Batch, crate::data::Error>;

impl Engine {
    /// One step: this rank's `passes` forward and backward, the mean gradient over all ranks, one
    /// update. `request` is what this rank would like to happen at the step edge.
    ///
    /// # Errors
    ///
    /// A tensor operation, a sample or another rank failed; loss or gradient are not finite and
    /// `train.on_non_finite = "stop"`, or the loss is past `fault.divergence_threshold`. Parameters then stand as before the step.
    pub fn step(
        &mut self,
        passes: &[sampler::MicroBatch],
        next: NextBatch<'_>,
        stop_request: StopRequest,
    ) -> Result<StepReport, Error> {
        let (step, clock) = (self.state.step + 1, Clock::start());
        let rates = self.schedule().rates(self.state.step, &self.state.plateau);
        let loss_scale = self.state.scaler.map_or(1.0, |scaler| scaler.scale);

        self.reducer.begin_step();
        let waited_before = self.time.data;
        let mut reports = Vec::with_capacity(passes.len());
        for (position, pass) in passes.iter().enumerate() {
            if position + 1 == passes.len() {
                self.reducer.begin_last_pass();
            }
            if !pass.samples.is_empty() {
                (self.observer)(step, Phase::LoadingData);
                let batch = self.timed(|time| &mut time.data, |_| next())?;
                let report = self.pass(step, pass, &batch, loss_scale)?;
                reports.push(report.missing(batch.unreadable));
            }
            if passes.get(position + 1).is_some_and(|next| next.shard != pass.shard) {
                self.reducer.end_shard()?;
            }
        }
        (self.observer)(step, Phase::Reducing);
        let waited = self.reducer.finish_step()?;
        self.time.communication += waited.as_secs_f64();

        let waited = (1e6 * (self.time.data - waited_before)) as u64;
        let unused = self.reducer.unused();
        let votes = self.vote(&Vote { passes: reports, unused, stop_request, waited })?;
        self.check_unused(step, &votes)?;
        let totals = Totals::over(votes.iter().flat_map(|vote| &vote.passes));
        self.check_readable(&totals)?;

        let mean = self.mean_factor(&totals, loss_scale);
        let norm = GradientNorm::new(self.reducer.squares(), f64::from(mean));
        let updated = self.decide(step, &votes, &totals, norm)?;
        if updated {
            (self.observer)(step, Phase::Optimizer);
            let idle = Self::unused_everywhere(&votes);
            self.timed(
                |time| &mut time.optimizer,
                |engine| engine.update(step, rates, (mean, norm), &idle),
            )?;
        }
        self.count(&totals);
        self.look_for_stragglers(step, &votes, clock.seconds());
        let stop_request = votes.iter().map(|vote| vote.stop_request).max().unwrap_or_default();
        Ok(self.report(step, rates, &totals, norm, (updated, stop_request)))
    }

    /// A rank that came late to the reductions of the last steps, once.
    pub fn take_straggler(&mut self) -> Option<Straggler> {
        self.straggler.take()
    }

    /// Something that the run should say, once.
    pub fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    fn look_for_stragglers(&mut self, step: u64, votes: &[Vote], seconds: f64) {
        if let Some(stragglers) = &mut self.stragglers {
            let waits: Vec<f64> = votes.iter().map(|vote| 1e-6 * vote.waited as f64).collect();
            let found = stragglers.step(step, &self.collective.lags(), &waits, seconds);
            self.straggler = found.or(self.straggler.take());
        }
    }

    /// How gradients get to the other ranks, where that is worth a line.
    pub fn describe(&self) -> Option<String> {
        self.reducer.describe()
    }

    /// Tells `observer` from now on what this rank is doing.
    pub fn observe(&mut self, observer: Observer) {
        self.observer = observer;
    }

    /// Progress of the run.
    pub fn state(&self) -> &TrainState {
        &self.state
    }

    /// Progress of the run, to be moved on by what happens between steps.
    pub fn state_mut(&mut self) -> &mut TrainState {
        &mut self.state
    }

    /// Names of what evaluations measure beside the loss, as `accuracy`.
    pub fn metrics(&self) -> Vec<String> {
        self.metrics.iter().map(|metric| metric.name().to_owned()).collect()
    }

    /// Parameters and buffers.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Copies the optimizer's state to the CPU's memory, if it is elsewhere: [`Engine::moments`] is true from then until
    /// the next step.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn bring_home(&mut self) -> Result<(), Error> {
        let step = self.state.step;
        if self.home != Some(step) {
            let home = self.reducer.bring_home(&mut self.moments);
            home.map_err(|source| Error::Tensor { phase: "saving", step, source })?;
            self.home = Some(step);
        }
        Ok(())
    }

    /// Optimizer state of each parameter in registration order; on a GPU as [`Engine::bring_home`] found it.
    pub fn moments(&self) -> &[Moments] {
        &self.moments
    }

    /// Seconds spent in each phase so far.
    pub fn time(&self) -> TimeShares {
        self.time
    }

    /// Seconds spent in each phase so far, for phases outside the engine.
    pub fn time_mut(&mut self) -> &mut TimeShares {
        &mut self.time
    }

    /// Takes the metrics of an evaluation after the current step. Returns whether the metric that ranks checkpoints is the
    /// best so far.
    pub fn evaluated(&mut self, metrics: BTreeMap<String, f64>) -> bool {
        self.state.evaluated(&self.plan, self.scheduler.as_ref(), metrics)
    }

    /// Learning rate of the step after the finished ones.
    pub fn next_rates(&self) -> Rates {
        self.schedule().rates(self.state.step, &self.state.plateau)
    }

    /// Forward and backward of one pass; gradients go to the buckets.
    fn pass(
        &mut self,
        step: u64,
        pass: &sampler::MicroBatch,
        batch: &Batch,
        loss_scale: f64,
    ) -> Result<PassReport, Error> {
        #[cfg(feature = "cuda")]
        if let Some(report) = self.graph_pass(step, pass, batch)? {
            return Ok(report);
        }
        let samples = pass.samples.len();
        let place = self.place(step, pass);
        let epoch = (step - 1) / self.plan.length.steps_per_epoch.max(1);
        let draws = draws(&self.plan, epoch, &batch.samples);
        (self.observer)(step, Phase::Forward);
        self.params.begin_pass(Some(&self.sink));
        let result = self
            .timed(
                |time| &mut time.forward,
                |engine| {
                    let (inputs, targets) = engine.placed(batch)?;
                    let Comparison { outputs, targets } =
                        engine.model.compare(&inputs, &targets, &draws, &place)?;
                    let loss = engine.loss.mean(&outputs, &targets)?;
                    let correct = loss::correct(&engine.plan.loss, &outputs, &targets)?;
                    let value = f64::from(loss::scalar(&loss)?);
                    // Full passes weigh 1, as in PyTorch; the short ones at the end of an epoch weigh less, and those with
                    // labels that do not count.
                    let weight = loss::weight(&engine.plan.loss, &targets, samples)?;
                    // Where nothing counts the gradient is zero, but it must reach the parameters.
                    let share = if weight > 0.0 { weight } else { 1.0 };
                    let factor = share / engine.plan.batch.size.count() as f64 * loss_scale;
                    Ok(((loss * factor)?, (value, weight), correct))
                },
            )
            .map_err(|source| Error::Tensor { phase: "forward", step, source })
            .and_then(|(scaled, (value, weight), correct)| {
                (self.observer)(step, Phase::Backward);
                self.timed(|time| &mut time.backward, |_| scaled.backward())
                    .map_err(|source| Error::Tensor { phase: "backward", step, source })?;
                let report = PassReport::new(pass.index_in_step, samples as u64, value, correct);
                Ok(report.weighing(weight))
            });
        self.params.end_pass();
        result
    }

    /// What the layers need to know about a pass. Running statistics follow the first shard only, as
    /// DDP's `broadcast_buffers` keeps those of rank 0.
    fn place(&self, step: u64, pass: &sampler::MicroBatch) -> ForwardContext {
        let key = Key::new(self.plan.seed, Purpose::Dropout, step, pass.index_in_step as u64);
        ForwardContext {
            mode: Mode::Train { key, track_statistics: pass.shard == 0 },
            precision: self.plan.precision,
            convolutions: self.plan.convolutions,
            activation_checkpointing: self.plan.activation_checkpointing,
        }
    }

    fn vote(&mut self, vote: &Vote) -> Result<Vec<Vote>, Error> {
        let collective = self.collective.clone();
        self.timed(|time| &mut time.communication, |_| vote::exchange(collective.as_ref(), vote))
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

    fn report(
        &self,
        step: u64,
        rates: Rates,
        totals: &Totals,
        norm: GradientNorm,
        (updated, stop_request): (bool, StopRequest),
    ) -> StepReport {
        let [right, asked] = totals.correct;
        let accuracy = right as f64 / asked.max(1) as f64;
        StepReport {
            step,
            loss: totals.loss,
            accuracy: self.plan.loss.has_classes().then_some(accuracy),
            lr: rates.lr,
            grad_norm: norm.norm(),
            loss_scale: self.state.scaler.map(|scaler| scaler.scale),
            updated,
            samples: totals.samples,
            stop_request,
        }
    }

    fn schedule(&self) -> Schedule<'_> {
        Schedule::new(self.scheduler.as_ref(), &self.plan.schedule, self.plan.optimizer.lr)
    }

    /// Runs `work` and adds its time to the phase that `share` names.
    fn timed<T>(
        &mut self,
        share: impl Fn(&mut TimeShares) -> &mut f64,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let clock = Clock::start();
        let result = work(self);
        *share(&mut self.time) += clock.seconds();
        result
    }
}

/// What the model may draw for each of `samples`: nothing that depends on the ranks.
fn draws(plan: &Plan, epoch: u64, samples: &[u32]) -> Vec<Key> {
    let key = |&sample: &u32| Key::new(plan.seed, Purpose::Draw, epoch, u64::from(sample));
    samples.iter().map(key).collect()
}
