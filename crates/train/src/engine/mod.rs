//! batch -> forward -> backward -> reduce -> unscale -> check -> clip -> update.
//!
//! [`Engine::step`] is the training step in this order, on one page (`step.rs`). All decisions
//! (skip, stop, learning rate) are taken on reduced values, so every rank takes the same one. The
//! front page of `ddprun` drives an engine by itself.

mod averaging;
#[cfg(any(feature = "cuda", test))]
mod graph_capture;
mod rank_consistency;
mod error;
mod evaluate;
#[cfg(feature = "cuda")]
mod graph_pass;
#[cfg(feature = "cuda")]
mod gpu_step;
mod sync_batchnorm;
mod early_stopping;
mod batch_to_device;
mod pass;
mod profile_pass;
mod ownership;
pub mod reducer;
mod rank_stats;
mod scaler;
mod start;
mod state;
mod step;
mod straggler;
mod swa;
mod optimizer_step;
mod vote;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use crate::event::Stop;
pub use averaging::swap_averages;
pub use batch_to_device::DeviceTensors;
pub use early_stopping::EarlyStopping;
pub use error::Error;
pub use evaluate::{Evaluation, MisjudgedSample, Split};
pub use ownership::keeps;
pub use profile_pass::{PassProfile, profile_pass};
pub use rank_stats::Clock;
pub use scaler::Scaler;
pub use state::{EpochSums, PendingEvaluation, SwaState, TrainState};
pub use step::{NextBatch, StepReport};
pub use vote::exchange;

use candle_core::Device;

use crate::collective::Collective;
use crate::event::Phase;
use crate::event::{RankStats, Straggler, TimeShares};
use crate::loss::Loss;
use crate::metric::Metric;
use crate::model::Model;
use crate::nn::Params;
use crate::ops::GradientSink;
use crate::optim::{Optimizer, ParameterState, Rates, Schedule, Scheduler};
use crate::plan::Plan;
use ownership::Ownership;
use rank_consistency::LastCompared;
use rank_stats::{RankReport, StatsClock};
use reducer::Reducer;
use straggler::Stragglers;
use sync_batchnorm::JointPasses;

/// Trains one rank's replica of a model together with the other ranks.
pub struct Engine {
    plan: Arc<Plan>,
    model: Box<dyn Model>,
    params: Params,
    loss: Box<dyn Loss>,
    metrics: Vec<Arc<dyn Metric>>,
    /// Number of samples with the highest losses that an evaluation reports.
    most_worst: usize,
    optimizer: Box<dyn Optimizer>,
    scheduler: Box<dyn Scheduler>,
    /// States of the parameters in registration order, then the averages of buffers.
    optimizer_state: Vec<ParameterState>,
    collective: Arc<dyn Collective>,
    /// `None` if each rank keeps all of the optimizer's state.
    ownership: Option<Arc<Ownership>>,
    reducer: Box<dyn Reducer>,
    /// The device of the model.
    device: Device,
    sink: Arc<dyn GradientSink>,
    state: TrainState,
    /// True for each parameter that takes part in the next step.
    trained: Vec<bool>,
    time: TimeShares,
    observer: Observer,
    compared: LastCompared,
    /// The step after which the optimizer's state was copied to the CPU's memory.
    host_state_step: Option<u64>,
    /// Rank 0's, in a group.
    stragglers: Option<Stragglers>,
    straggler: Option<Straggler>,
    stats: StatsClock,
    /// Present if batch norms take their statistics over all shards.
    joint: Option<JointPasses>,
    /// Passes as one launch, where the plan allows it.
    #[cfg(feature = "cuda")]
    graph: Option<graph_pass::GraphPass>,
    /// Something that the run should say once.
    notice: Option<String>,
}

/// The components that the plan chooses.
pub struct Components {
    pub model: Box<dyn Model>,
    /// Parameters and buffers of the model.
    pub params: Params,
    pub loss: Box<dyn Loss>,
    /// Metrics that evaluations measure beside the loss.
    pub metrics: Vec<Arc<dyn Metric>>,
    pub optimizer: Box<dyn Optimizer>,
    /// The learning rate over time.
    pub scheduler: Box<dyn Scheduler>,
}

/// Callback for each change of a rank's phase, with the step (from 1).
pub type Observer = Box<dyn Fn(u64, Phase) + Send>;

impl Engine {
    /// A rank that came late to the reductions of the last steps, once.
    pub fn take_straggler(&mut self) -> Option<Straggler> {
        self.straggler.take()
    }

    /// Takes the ranks' newest statistics, once; only on rank 0.
    pub fn take_rank_stats(&mut self) -> Option<RankStats> {
        self.stats.take()
    }

    /// Returns statistics of all ranks up to now. All ranks must call it.
    pub fn rank_stats(&self) -> Result<RankStats, Error> {
        // A rank that waits here is not the one that hangs.
        (self.observer)(self.state.step, Phase::Reducing);
        let all = exchange(self.collective.as_ref(), &RankReport::now(self.time, &self.device))?;
        let late = self.stragglers.as_ref().map_or(&[][..], Stragglers::late_seconds);
        Ok(rank_stats::of(self.state.step, &all, late))
    }

    /// Something that the run should say, once.
    pub fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    /// Describes how gradients reach the other ranks, and this rank's part of the optimizer's
    /// state, where that is worth a line.
    pub fn describe(&self) -> Option<String> {
        let said = [self.reducer.describe(), self.describe_ownership()];
        let said: Vec<String> = said.into_iter().flatten().collect();
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// Calls `observer` from now on when this rank's phase changes.
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

    /// Copies the optimizer's state to the CPU's memory, if it is elsewhere:
    /// [`Engine::optimizer_state`] is true from then until the next step.
    pub fn copy_optimizer_state_to_host(&mut self) -> Result<(), Error> {
        let step = self.state.step;
        if self.host_state_step != Some(step) {
            let home = self.reducer.copy_optimizer_state_to_host(&mut self.optimizer_state);
            home.map_err(Error::tensor("saving", step))?;
            self.host_state_step = Some(step);
        }
        Ok(())
    }

    /// Optimizer state of each parameter in registration order; on a GPU as [`Engine::copy_optimizer_state_to_host`]
    /// found it. Where it is divided among ranks, only this rank's parameters have one, unless
    /// [`Engine::gather_optimizer_state`] brought the others.
    pub fn optimizer_state(&self) -> &[ParameterState] {
        &self.optimizer_state
    }

    /// Seconds spent in each phase so far.
    pub fn time(&self) -> TimeShares {
        self.time
    }

    /// Seconds spent in each phase so far, for phases outside the engine.
    pub fn time_mut(&mut self) -> &mut TimeShares {
        &mut self.time
    }

    /// Adds a metric to those that evaluations measure.
    pub fn measure_also(&mut self, metric: Arc<dyn Metric>) {
        if self.metrics.iter().all(|other| other.name() != metric.name()) {
            self.metrics.push(metric);
        }
    }

    /// Takes the metrics of an evaluation after the current step. Returns whether the metric that
    /// ranks checkpoints is the best so far.
    pub fn evaluated(&mut self, metrics: BTreeMap<String, f64>) -> bool {
        self.state.evaluated(&self.plan, self.scheduler.as_ref(), metrics)
    }

    /// Learning rate of the step after the finished ones.
    pub fn next_rates(&self) -> Rates {
        let plan = &self.plan;
        let done = self.state.step;
        let rates = |done| self.schedule().rates(done, &self.state.plateau);
        let averaging = plan
            .swa
            .and_then(|of| swa::swa_lr(&of, done, plan.length.steps_per_epoch, rates(of.start).lr));
        Rates { lr: averaging.unwrap_or(rates(done).lr), ..rates(done) }
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
