//! Learning rate as a function of the step: pure, so that a resumed run needs no scheduler state but
//! the plateau's. A step whose update is skipped (fp16) counts like any other: the rate of step n is
//! what the plan says for step n.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use crate::plan::{Mode, SchedulePlan, ScheduleRule};

/// `OneCycleLR`'s default range of the momentum.
const MOMENTUM_RANGE: [f64; 2] = [0.85, 0.95];

/// A schedule bound to its peak learning rate.
#[derive(Clone, Copy, Debug)]
pub struct Schedule<'a> {
    plan: &'a SchedulePlan,
    lr: f64,
}

/// What the optimizer uses in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Learning rate.
    pub lr: f64,
    /// Momentum (or Adam's first beta), where the schedule moves it.
    pub momentum: Option<f64>,
}

impl<'a> Schedule<'a> {
    /// The schedule of `plan` with (scaled) learning rate `lr`.
    pub fn new(plan: &'a SchedulePlan, lr: f64) -> Self {
        Self { plan, lr }
    }

    /// The rates of the step after `done` finished steps.
    pub fn rates(&self, done: u64, plateau: &Plateau) -> Rates {
        if let ScheduleRule::OneCycle { .. } = self.plan.rule {
            return self.one_cycle(done);
        }
        let warmup = self.plan.warmup_steps;
        let lr = if done < warmup {
            let start = self.plan.warmup_start_factor;
            self.lr * (start + (1.0 - start) * done as f64 / warmup as f64)
        } else {
            self.after_warmup((done - warmup) / self.plan.interval.max(1))
        };
        Rates { lr: lr * plateau.scale, momentum: None }
    }

    /// Learning rate after `t` intervals of the rule.
    fn after_warmup(&self, t: u64) -> f64 {
        let powi = |gamma: f64, n: u64| gamma.powi(i32::try_from(n).unwrap_or(i32::MAX));
        match &self.plan.rule {
            ScheduleRule::Constant
            | ScheduleRule::Plateau { .. }
            | ScheduleRule::OneCycle { .. } => self.lr,
            ScheduleRule::Step { size, gamma } => self.lr * powi(*gamma, t / (*size).max(1)),
            ScheduleRule::MultiStep { milestones, gamma } => {
                self.lr * powi(*gamma, milestones.iter().filter(|&&at| at <= t).count() as u64)
            }
            ScheduleRule::Exponential { gamma } => self.lr * powi(*gamma, t),
            ScheduleRule::Noam { scale, warmup, min_lr } => {
                let (n, warmup) = (t.max(1) as f64, *warmup as f64);
                let falls = n.powf(-0.5);
                if n > warmup {
                    return (self.lr * scale * falls).max(*min_lr);
                }
                self.lr * scale * falls.min(n * warmup.powf(-1.5))
            }
            ScheduleRule::Cosine { t_max, eta_min } => {
                let share = t.min(*t_max) as f64 / (*t_max).max(1) as f64;
                eta_min + (self.lr - eta_min) * (1.0 + (PI * share).cos()) / 2.0
            }
        }
    }

    /// `OneCycleLR` (Smith and Topin 2018) with cosine annealing and PyTorch's phase borders.
    fn one_cycle(&self, done: u64) -> Rates {
        let ScheduleRule::OneCycle { total, pct_start, div_factor, final_div_factor } =
            self.plan.rule
        else {
            return Rates { lr: self.lr, momentum: None };
        };
        let first = self.lr / div_factor;
        let last = first / final_div_factor;
        let [low, high] = MOMENTUM_RANGE;
        let peak_at = pct_start * total as f64 - 1.0;
        let (end_at, now) = (total as f64 - 1.0, done as f64);
        let (lr, momentum) = if now <= peak_at {
            let share = now / peak_at;
            (anneal(first, self.lr, share), anneal(high, low, share))
        } else {
            let share = ((now - peak_at) / (end_at - peak_at)).min(1.0);
            (anneal(self.lr, last, share), anneal(low, high, share))
        };
        Rates { lr, momentum: Some(momentum) }
    }
}

fn anneal(from: f64, to: f64, share: f64) -> f64 {
    to + (from - to) / 2.0 * (1.0 + (PI * share).cos())
}

/// State of `ReduceLROnPlateau`: the factor on the learning rate, and what led to it. Every rank moves
/// it with the same reduced metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plateau {
    scale: f64,
    best: Option<f64>,
    bad: u64,
}

impl Default for Plateau {
    fn default() -> Self {
        Self { scale: 1.0, best: None, bad: 0 }
    }
}

impl Plateau {
    /// Takes the monitored metric of one more evaluation; other rules than `Plateau` ignore it.
    pub fn observe(&mut self, rule: &ScheduleRule, value: f64) {
        let ScheduleRule::Plateau { mode, factor, patience, threshold, .. } = rule else { return };
        if self.is_better(*mode, *threshold, value) {
            self.best = Some(value);
            self.bad = 0;
        } else {
            self.bad += 1;
        }
        if self.bad > *patience {
            self.scale *= factor;
            self.bad = 0;
        }
    }

    /// `threshold_mode = "rel"` of PyTorch.
    fn is_better(&self, mode: Mode, threshold: f64, value: f64) -> bool {
        self.best.is_none_or(|best| match mode {
            Mode::Min => value < best * (1.0 - threshold),
            Mode::Max => value > best * (1.0 + threshold),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noam_rises_to_its_warm_up_and_falls_with_the_root_of_the_steps() {
        let scale = 512f64.powf(-0.5);
        let plan = |min_lr| SchedulePlan {
            warmup_steps: 0,
            warmup_start_factor: 1.0,
            interval: 1,
            rule: ScheduleRule::Noam { scale, warmup: 25_000, min_lr },
        };
        let rate = |plan: &SchedulePlan, done| {
            Schedule::new(plan, 5.0).rates(done, &Plateau::default()).lr
        };
        // NeMo's NoamAnnealing of lr 5, d_model 512 and 25,000 steps of warm-up.
        for (done, expected) in [
            (0, 5.590_169_943_749_475e-8),
            (1, 5.590_169_943_749_475e-8),
            (100, 5.590_169_943_749_474_4e-6),
            (1000, 5.590_169_943_749_474e-5),
            (25_000, 0.001_397_542_485_937_368_8),
            (100_000, 0.000_698_771_242_968_684_4),
            (500_000, 0.000_312_5),
        ] {
            let found = rate(&plan(1e-6), done);
            assert!((found - expected).abs() < 1e-12 * expected.max(1e-3), "{done}: {found}");
        }
        assert_eq!(rate(&plan(1e-3), 500_000), 1e-3);
        assert!(rate(&plan(1e-3), 100) < 1e-3, "the floor holds after the warm-up");
    }
}
