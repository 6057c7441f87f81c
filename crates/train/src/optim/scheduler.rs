//! The family of schedulers: learning rate as a pure function of the step, so that only the plateau
//! has state that a resumed run needs. A step whose update is skipped (fp16) counts like any other.
//! `plan::schedule` converts epochs to steps.

mod annealing;
mod decay;
mod one_cycle;
mod plateau;

use std::fmt::Debug;

use crate::config::kind::{Choice, Kind};
use crate::plan::{Mode, SchedulePlan, SchedulerFacts, Span, Unfit};
use crate::registry::{Accepts, Family, Registry, Unbuildable};

pub use annealing::{
    CosineAnnealingLr, CosineRestarts, DecayType, InverseSqrt, Linear, PolynomialLr,
    WarmupStableDecay,
};
pub use decay::{Constant, ExponentialLr, MultiStepLr, NoamAnnealing, StepLr};
pub use one_cycle::OneCycleLr;
pub use plateau::{Plateau, ReduceLrOnPlateau};

/// Learning rate over time, after the linear warm-up that all schedulers share.
pub trait Scheduler: Debug + Send + Sync {
    /// Learning rate after `t` intervals.
    fn lr(&self, t: u64, span: &Span) -> f64;

    /// The line of `ddprun plan`, without what all schedulers share: "cosine over 50 epochs to 0".
    fn describe(&self, span: &Span) -> String;

    /// Checks that it can be used over `span`.
    fn fits(&self, span: &Span) -> Result<(), Unfit> {
        let _ = span;
        Ok(())
    }

    /// Learning rate at the end of a warm-up.
    fn warmup_target(&self, span: &Span) -> f64 {
        span.lr
    }

    /// True if it changes with every step, whatever `scheduler.interval` is.
    fn moves_by_steps(&self) -> bool {
        false
    }

    /// True if it includes the warm-up: its intervals are then counted from the first step.
    fn has_own_warmup(&self) -> bool {
        false
    }

    /// Lowest and highest momentum, if it changes the momentum too.
    fn momentum_range(&self) -> Option<[f64; 2]> {
        None
    }

    /// Momentum (or Adam's first beta) after `t` intervals, if it changes that too.
    fn momentum(&self, t: u64, span: &Span) -> Option<f64> {
        let _ = (t, span);
        None
    }

    /// The metric that it monitors, if any.
    fn monitor(&self) -> Option<&str> {
        None
    }

    /// Takes the value of its metric at one more evaluation; `better` is the metric's own
    /// direction.
    fn observe(&self, plateau: &mut Plateau, value: f64, better: Mode) {
        let _ = (plateau, value, better);
    }
}

/// `[scheduler]`
#[derive(Debug)]
pub enum SchedulerFamily {}

impl Family for SchedulerFamily {
    const TABLE: &'static str = "scheduler";
    const NOUN: &'static str = "scheduler";
    type Object = dyn Scheduler;
}

impl<K: Kind + Scheduler> Accepts<K> for SchedulerFamily {
    fn boxed(kind: K) -> Box<dyn Scheduler> {
        Box::new(kind)
    }
}

/// Registry of schedulers.
pub type Schedulers = Registry<SchedulerFamily>;

/// Properties of a scheduler that planning needs.
pub fn scheduler_facts(schedulers: &Schedulers, rule: &Choice) -> Result<SchedulerFacts, String> {
    let scheduler = schedulers.build(rule).map_err(|error| error.to_string())?;
    Ok(SchedulerFacts {
        moves_by_steps: scheduler.moves_by_steps(),
        has_own_warmup: scheduler.has_own_warmup(),
        momentum: scheduler.momentum_range(),
    })
}

/// Describes a scheduler over `span`.
pub fn describe_schedule(
    schedulers: &Schedulers,
    rule: &Choice,
    span: &Span,
) -> Result<String, Unfit> {
    let unknown = |error: Unbuildable| Unfit { key: "name", what: error.to_string(), help: None };
    let scheduler = schedulers.build(rule).map_err(unknown)?;
    scheduler.fits(span).map(|()| scheduler.describe(span))
}

/// Plan of `scheduler` over `steps` steps, changing at each of them, without a warm-up.
pub fn schedule<K: Kind + Scheduler>(scheduler: &K, steps: u64) -> SchedulePlan {
    SchedulePlan::by_steps(Choice::of(scheduler), Some(steps))
}

/// A scheduler bound to its run and its peak learning rate.
#[derive(Clone, Copy, Debug)]
pub struct Schedule<'a> {
    scheduler: &'a dyn Scheduler,
    plan: &'a SchedulePlan,
    span: Span,
}

/// Learning rate and momentum of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Learning rate.
    pub lr: f64,
    /// Momentum (or Adam's first beta), if the schedule changes it.
    pub momentum: Option<f64>,
}

impl<'a> Schedule<'a> {
    /// Schedule of `plan` with the (scaled) learning rate `lr`.
    pub fn new(scheduler: &'a dyn Scheduler, plan: &'a SchedulePlan, lr: f64) -> Self {
        Self { scheduler, plan, span: plan.span(lr) }
    }

    /// Rates of the step after `done` finished steps: of the warm-up, then of the scheduler.
    pub fn rates(&self, done: u64, plateau: &Plateau) -> Rates {
        let Self { scheduler, plan, span } = self;
        let warmup = if scheduler.has_own_warmup() { 0 } else { plan.warmup_steps };
        let t = done.saturating_sub(warmup) / plan.interval.max(1);
        let momentum = scheduler.momentum(t, span);
        let lr = if done < warmup {
            let start = plan.warmup_start_factor;
            let factor = start + (1.0 - start) * done as f64 / warmup as f64;
            scheduler.warmup_target(span) * factor
        } else {
            scheduler.lr(t, span)
        };
        Rates { lr: lr * plateau.scale(), momentum }
    }
}

#[cfg(test)]
mod tests;
