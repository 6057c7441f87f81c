//! Learning rate over time: the warm-up that all schedulers share, and the intervals at which the
//! chosen one changes the rate.

use serde::{Deserialize, Serialize};

use crate::config::kind::Choice;
use crate::config::values::{Interval, Warmup};
use crate::config::{Loaded, Problem};
use crate::plan::metrics::better;
use crate::plan::{LengthPlan, MetricFacts, Mode, OptimizerPlan, ScheduleUnit, Unfit};
use crate::terminal::format_number;

/// Learning rate over time: a linear warm-up, then what a scheduler says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulePlan {
    /// The scheduler with all its options.
    pub rule: Choice,
    /// Steps of linear warm-up.
    pub warmup_steps: u64,
    /// Factor at the first warm-up step.
    pub warmup_start_factor: f64,
    /// Steps between two changes of the rate: 1, or the steps of an epoch.
    pub interval: u64,
    /// Intervals of the run after the warm-up; `None` = only a limit of time ends it.
    pub intervals: Option<u64>,
    /// Direction in which the metric that the scheduler watches is better, unless its options say
    /// so.
    pub better: Mode,
    /// The schedule in a line for people.
    #[serde(default)]
    pub line: String,
}

/// The part of a run that a scheduler fills, in its intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The peak: the learning rate after scaling by the global batch size.
    pub lr: f64,
    /// Intervals after the warm-up, at least 1; `None` = only a limit of time ends the run.
    pub intervals: Option<u64>,
    /// True if an interval is a step, false if it is an epoch.
    pub by_steps: bool,
    /// Steps of the warm-up.
    pub warmup_steps: u64,
}

impl Span {
    /// The name of the intervals: "steps" or "epochs".
    pub fn unit(&self) -> &'static str {
        if self.by_steps { "steps" } else { "epochs" }
    }
}

/// Properties that a scheduler declares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SchedulerFacts {
    /// True if it changes the rate at each step, whatever `scheduler.interval` says.
    pub moves_by_steps: bool,
    /// True if it has a warm-up of its own.
    pub has_own_warmup: bool,
    /// Lowest and highest momentum, if it changes the momentum as well.
    pub momentum: Option<[f64; 2]>,
}

impl SchedulePlan {
    /// The scheduler in a run of `intervals` steps, without a warm-up.
    pub fn by_steps(rule: Choice, intervals: Option<u64>) -> Self {
        Self {
            line: rule.name.clone(),
            rule,
            warmup_steps: 0,
            warmup_start_factor: 1.0,
            interval: 1,
            intervals,
            better: Mode::Min,
        }
    }

    /// The part of the run that the scheduler fills, with the peak `lr`.
    pub fn span(&self, lr: f64) -> Span {
        let Self { warmup_steps, interval, intervals, .. } = *self;
        Span { lr, intervals, by_steps: interval == 1, warmup_steps }
    }
}

/// The plan of `[scheduler]`, in steps and intervals of this run. `facts` returns what a scheduler
/// declares, `describe` what it does in a span, in words.
pub(super) fn decide(
    loaded: &Loaded,
    length: &LengthPlan,
    optimizer: &OptimizerPlan,
    metrics: &[MetricFacts],
    facts: impl FnOnce(&Choice) -> Result<SchedulerFacts, String>,
    describe: impl FnOnce(&Choice, &Span) -> Result<String, Unfit>,
) -> Result<SchedulePlan, Problem> {
    let config = &loaded.experiment.scheduler;
    let warmup_steps = match config.warmup {
        Warmup::Percent(_) if !length.is_bounded() => {
            let what =
                "is a share of the run, whose steps are not known: only `train.time` ends it";
            let help = "give it in steps or epochs, or give `train.epochs` or `train.steps`";
            return Err(loaded.problem("scheduler.warmup", what).help(help));
        }
        warmup => warmup_steps(warmup, length),
    };
    if length.is_bounded() && warmup_steps > 0 && warmup_steps >= length.total_steps {
        let total = length.total_steps;
        let what = format!(
            "must be shorter than the run: it lasts {warmup_steps} steps, the run has {total}"
        );
        let help = "shorten it, give a share (`\"5 %\"`), or leave it out: `~scheduler.warmup`";
        return Err(loaded.problem("scheduler.warmup", what).help(help));
    }
    let rule = Choice { name: config.name.clone(), options: config.options.clone() };
    let facts = facts(&rule).map_err(|what| loaded.problem("scheduler.name", what))?;
    let interval = match config.interval {
        ScheduleUnit::Epoch if !facts.moves_by_steps => length.steps_per_epoch,
        ScheduleUnit::Epoch | ScheduleUnit::Step => 1,
    };
    let after_warmup = length.total_steps.saturating_sub(warmup_steps);
    let mut plan = SchedulePlan {
        rule,
        warmup_steps,
        warmup_start_factor: config.warmup_start_factor,
        interval,
        intervals: length.is_bounded().then(|| after_warmup.div_ceil(interval).max(1)),
        better: config.monitor().map_or(Mode::Min, |metric| better(metric, metrics)),
        line: String::new(),
    };
    let described = describe(&plan.rule, &plan.span(optimizer.lr));
    let described = described.map_err(|unfit| problem(loaded, unfit))?;
    plan.line = described + &momentum_words(&facts, optimizer) + &warmup_words(&facts, &plan);
    Ok(plan)
}

/// The problem of an option, drawn under it, or under the name that brings its default.
fn problem(loaded: &Loaded, unfit: Unfit) -> Problem {
    let key = format!("scheduler.{}", unfit.key);
    let place = if loaded.is_given(&key) { &key } else { "scheduler.name" };
    unfit.problem(|what| loaded.problem_at(&key, place, what))
}

/// ", beta1 from 0.95 to 0.85 and back"
fn momentum_words(facts: &SchedulerFacts, optimizer: &OptimizerPlan) -> String {
    let Some((name, [low, high])) = optimizer.momentum.as_ref().zip(facts.momentum) else {
        return String::new();
    };
    format!(", {name} from {} to {} and back", format_number(high), format_number(low))
}

/// ", after 60 steps of warm-up from 1 %"
fn warmup_words(facts: &SchedulerFacts, plan: &SchedulePlan) -> String {
    if facts.has_own_warmup || plan.warmup_steps == 0 {
        return String::new();
    }
    let from = format_number(plan.warmup_start_factor * 100.0);
    format!(", after {} steps of warm-up from {from} %", plan.warmup_steps)
}

fn warmup_steps(warmup: Warmup, length: &LengthPlan) -> u64 {
    match warmup {
        Warmup::For(Interval::Never) => 0,
        Warmup::For(Interval::Epochs(n)) => n.saturating_mul(length.steps_per_epoch),
        Warmup::For(Interval::Steps(n)) => n,
        // A share is less than the whole, so at least one step follows it.
        Warmup::Percent(percent) => (length.total_steps as f64 * percent / 100.0) as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_up_is_a_count_of_steps_or_epochs_or_a_share_of_the_run() {
        let steps = |warmup: Warmup, epochs: u64| {
            let (steps_per_epoch, time) = (12, None);
            let total_steps = epochs * steps_per_epoch;
            warmup_steps(warmup, &LengthPlan { steps_per_epoch, total_steps, time })
        };
        assert_eq!(steps(Warmup::For(Interval::Never), 50), 0);
        assert_eq!(steps(Warmup::For(Interval::Steps(7)), 50), 7);
        assert_eq!(steps(Warmup::For(Interval::Epochs(5)), 50), 60);
        assert_eq!(steps(Warmup::Percent(5.0), 50), 30);
        assert_eq!(steps(Warmup::Percent(5.0), 1), 0);
        assert_eq!(steps(Warmup::Percent(99.9), 1), 11);
    }
}
