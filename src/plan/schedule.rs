//! Learning rate over time, with PyTorch's numbers where none were given.

use serde::{Deserialize, Serialize};

use crate::config::schema::{Scheduler, SchedulerKind};
use crate::config::values::Every;
use crate::config::{Loaded, Problem};
use crate::plan::metrics::better;
use crate::plan::{Interval, LengthPlan, MetricFacts, Mode};

/// Lowest and highest momentum of `one_cycle`: `OneCycleLR`'s defaults.
pub const CYCLED_MOMENTUM: [f64; 2] = [0.85, 0.95];

/// Learning rate over time: a linear warm-up, then a rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SchedulePlan {
    /// Steps of linear warm-up.
    pub warmup_steps: u64,
    /// Factor at the first warm-up step.
    pub warmup_start_factor: f64,
    /// Steps between two moves of the rule: 1, or the steps of an epoch.
    pub interval: u64,
    /// The rule.
    pub rule: ScheduleRule,
}

/// The rules; `t` counts intervals after the warm-up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleRule {
    /// lr
    Constant,
    /// lr gamma^floor(t / size)
    Step {
        /// Intervals.
        size: u64,
        /// Factor.
        gamma: f64,
    },
    /// lr gamma^(number of milestones <= t)
    MultiStep {
        /// Intervals, ascending.
        milestones: Vec<u64>,
        /// Factor.
        gamma: f64,
    },
    /// lr gamma^t
    Exponential {
        /// Factor.
        gamma: f64,
    },
    /// `eta_min + (lr - eta_min) (1 + cos(pi t / t_max)) / 2`
    Cosine {
        /// Intervals to the minimum.
        t_max: u64,
        /// The minimum.
        eta_min: f64,
    },
    /// lr `scale` min(n^-0.5, n warmup^-1.5) after n steps, at least 1, and after the warm-up not below `min_lr`.
    Noam {
        /// The root of the model's width, inverted.
        scale: f64,
        /// Steps in which the rate rises.
        warmup: u64,
        /// Floor.
        min_lr: f64,
    },
    /// `OneCycleLR` with cosine annealing, by steps; it moves the momentum, or Adam's first beta, too.
    OneCycle {
        /// Steps of the cycle.
        total: u64,
        /// Share in which the rate rises.
        pct_start: f64,
        /// peak / first rate.
        div_factor: f64,
        /// first rate / last rate.
        final_div_factor: f64,
    },
    /// `ReduceLROnPlateau`, after each evaluation.
    Plateau {
        /// Metric to watch.
        monitor: String,
        /// Less or more is better.
        mode: Mode,
        /// Factor of a drop.
        factor: f64,
        /// Bad evaluations tolerated.
        patience: u64,
        /// Relative improvement that counts.
        threshold: f64,
    },
}

/// The schedule as asked, in steps and intervals of this run. `lr` is the scaled learning rate.
pub(crate) fn decide(
    loaded: &Loaded,
    length: &LengthPlan,
    lr: f64,
    metrics: &[MetricFacts],
) -> Result<SchedulePlan, Problem> {
    let asked = &loaded.experiment.scheduler;
    let warmup_steps = warmup_steps(asked.warmup, length.steps_per_epoch);
    if length.is_bounded() && warmup_steps > 0 && warmup_steps >= length.total_steps {
        let total = length.total_steps;
        let what = format!(
            "must be shorter than the run: it lasts {warmup_steps} steps, the run has {total}"
        );
        return Err(loaded.problem("scheduler.warmup", what));
    }
    if asked.eta_min.is_some_and(|eta_min| eta_min > lr) {
        let what = format!("must be at most the learning rate, {lr}");
        return Err(loaded.problem("scheduler.eta_min", what));
    }
    let interval = match (asked.name, asked.interval) {
        (SchedulerKind::OneCycle | SchedulerKind::Noam, _) | (_, Interval::Step) => 1,
        (_, Interval::Epoch) => length.steps_per_epoch,
    };
    if let Some(rule) = noam(asked, warmup_steps) {
        return Ok(SchedulePlan { warmup_steps: 0, warmup_start_factor: 1.0, interval, rule });
    }
    let after_warmup = length.total_steps.saturating_sub(warmup_steps);
    let intervals = after_warmup.div_ceil(interval).max(1);
    let rule = rule(asked, intervals, metrics);
    if let Some((key, what, help)) = impossible(&rule, lr, length.is_bounded().then_some(intervals))
    {
        return Err(loaded.problem_at(key, given_or_name(loaded, key), what).help(help));
    }
    let warmup_start_factor = asked.warmup_start_factor;
    Ok(SchedulePlan { warmup_steps, warmup_start_factor, interval, rule })
}

/// Where a problem with `key` is drawn: under it, or under the rule that brings its default.
fn given_or_name<'a>(loaded: &Loaded, key: &'a str) -> &'a str {
    if loaded.is_given(key) { key } else { "scheduler.name" }
}

/// The key of a rule that gives no rates, why, and what to do; `intervals` = those of the run, if they are known.
fn impossible(
    rule: &ScheduleRule,
    lr: f64,
    intervals: Option<u64>,
) -> Option<(&'static str, String, &'static str)> {
    match *rule {
        // The rate is that of the peak before the second step: PyTorch divides by zero, or leaves the rise out.
        ScheduleRule::OneCycle { total, pct_start, .. }
            if pct_start > 0.0 && pct_start * total as f64 <= 1.0 =>
        {
            let what =
                format!("leaves no step in which the rate rises: {pct_start} of {total} steps");
            let help = "train for longer, or give a larger share; 0 begins at the peak";
            Some(("scheduler.pct_start", what, help))
        }
        ScheduleRule::Exponential { gamma } => {
            let moves = i32::try_from(intervals?.saturating_sub(1)).unwrap_or(i32::MAX);
            let last = lr * gamma.powi(moves).min(f64::MAX);
            (last > f64::from(f32::MAX)).then(|| {
                let what = format!("takes the learning rate past the largest number of 32 bits: {lr} x {gamma}^{moves}");
                ("scheduler.gamma", what, "train for fewer steps, or give a factor nearer to 1")
            })
        }
        _ => None,
    }
}

/// Noam's rule, whose warm-up is a part of it.
fn noam(asked: &Scheduler, warmup: u64) -> Option<ScheduleRule> {
    let width = asked.d_model.filter(|_| asked.name == SchedulerKind::Noam)?;
    let (scale, min_lr) = (f64::from(width).powf(-0.5), asked.min_lr.unwrap_or(0.0));
    Some(ScheduleRule::Noam { scale, warmup, min_lr })
}

fn warmup_steps(warmup: Every, steps_per_epoch: u64) -> u64 {
    match warmup {
        Every::Never => 0,
        Every::Epochs(n) => n.saturating_mul(steps_per_epoch),
        Every::Steps(n) => n,
    }
}

/// `intervals` = those after the warm-up.
fn rule(asked: &Scheduler, intervals: u64, metrics: &[MetricFacts]) -> ScheduleRule {
    let gamma = asked.gamma.unwrap_or(0.1);
    match asked.name {
        // Noam's rule is made before, with its warm-up; without a width it is refused earlier.
        SchedulerKind::Constant | SchedulerKind::Noam => ScheduleRule::Constant,
        SchedulerKind::Step => ScheduleRule::Step { size: asked.step_size.unwrap_or(30), gamma },
        SchedulerKind::MultiStep => ScheduleRule::MultiStep {
            milestones: asked.milestones.clone().unwrap_or_default(),
            gamma,
        },
        SchedulerKind::Exponential => ScheduleRule::Exponential { gamma },
        SchedulerKind::Cosine => {
            ScheduleRule::Cosine { t_max: intervals, eta_min: asked.eta_min.unwrap_or(0.0) }
        }
        SchedulerKind::OneCycle => ScheduleRule::OneCycle {
            total: intervals,
            pct_start: asked.pct_start.unwrap_or(0.3),
            div_factor: asked.div_factor.unwrap_or(25.0),
            final_div_factor: asked.final_div_factor.unwrap_or(1e4),
        },
        SchedulerKind::Plateau => plateau(asked, metrics),
    }
}

fn plateau(asked: &Scheduler, metrics: &[MetricFacts]) -> ScheduleRule {
    let monitor = asked.monitor.clone().unwrap_or_else(|| "val/loss".to_owned());
    ScheduleRule::Plateau {
        mode: asked.mode.unwrap_or(better(&monitor, metrics)),
        monitor,
        factor: asked.factor.unwrap_or(0.1),
        patience: asked.patience.unwrap_or(10),
        threshold: asked.threshold.unwrap_or(1e-4),
    }
}
