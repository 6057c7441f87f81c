//! Learning rate as a function of the step: pure, so that a resumed run needs no scheduler state but
//! the plateau's. A step whose update is skipped (fp16) counts like any other: the rate of step n is
//! what the plan says for step n.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use crate::plan::{CYCLED_MOMENTUM, Mode, SchedulePlan, ScheduleRule};

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

    /// The rates of the step after `done` finished steps: the warm-up's, then the rule's.
    pub fn rates(&self, done: u64, plateau: &Plateau) -> Rates {
        let warmup = self.plan.warmup_steps;
        let t = done.saturating_sub(warmup) / self.plan.interval.max(1);
        let Rates { mut lr, momentum } = match self.plan.rule {
            ScheduleRule::OneCycle { .. } => self.one_cycle(t),
            _ if done < warmup => Rates { lr: self.lr, momentum: None },
            _ => Rates { lr: self.after_warmup(t), momentum: None },
        };
        if done < warmup {
            let start = self.plan.warmup_start_factor;
            lr *= start + (1.0 - start) * done as f64 / warmup as f64;
        }
        Rates { lr: lr * plateau.scale, momentum }
    }

    /// Learning rate after `t` intervals of the rule.
    fn after_warmup(&self, t: u64) -> f64 {
        // A rate of 0 stays 0, and one that rises for ever stays finite.
        let powi =
            |gamma: f64, n: u64| gamma.powi(i32::try_from(n).unwrap_or(i32::MAX)).min(f64::MAX);
        match &self.plan.rule {
            ScheduleRule::Constant
            | ScheduleRule::Plateau { .. }
            | ScheduleRule::OneCycle { .. } => self.lr,
            ScheduleRule::Step { size, gamma } => self.lr * powi(*gamma, t / (*size).max(1)),
            ScheduleRule::MultiStep { milestones, gamma } => {
                self.lr * powi(*gamma, milestones.iter().filter(|&&at| at <= t).count() as u64)
            }
            ScheduleRule::Exponential { gamma } => {
                (self.lr * powi(*gamma, t)).min(f64::from(f32::MAX))
            }
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

    /// `OneCycleLR` (Smith and Topin 2018) with cosine annealing and PyTorch's phase borders, `t` steps after the warm-up.
    fn one_cycle(&self, t: u64) -> Rates {
        let ScheduleRule::OneCycle { total, pct_start, div_factor, final_div_factor } =
            self.plan.rule
        else {
            return Rates { lr: self.lr, momentum: None };
        };
        let first = self.lr / div_factor;
        let last = first / final_div_factor;
        let [low, high] = CYCLED_MOMENTUM;
        let peak_at = pct_start * total as f64 - 1.0;
        let (end_at, now) = (total as f64 - 1.0, t as f64);
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
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::config::{Vocabulary, load_text};
    use crate::plan::{DataFacts, Facts, ModelFacts, Plan, SourcePlan};

    /// A plan of `total` steps of 3 per epoch under these keys of `[scheduler]`, if it is legal.
    fn planned(keys: &[String], total: u64) -> Result<Plan, String> {
        let text = "[model]\nname = \"mlp\"\n[data]\nname = \"csv\"\ntrain_file = \"t\"\nval_file = \"v\"\n\
            target = \"y\"\n[train]\nbatch_size = 2\n[loss]\nname = \"mse\"\n[optimizer]\nname = \"sgd\"\n\
            lr = 0.5\n";
        let words = [vec![format!("train.steps={total}")], keys.to_vec()].concat();
        let vocabulary = Vocabulary::of_models(["mlp"]);
        let loaded = load_text(Path::new("x.toml"), text, &words, &vocabulary)
            .map_err(|problems| problems.page(false, 80))?;
        let source = SourcePlan::Csv {
            train: "t".into(),
            val: "v".into(),
            target: "y".to_owned(),
            classify: false,
        };
        let data = DataFacts {
            source,
            n_train: 6,
            n_val: 2,
            classes: vec![],
            sample: Some(vec![1]),
            n_test: 0,
            notes: Vec::new(),
            target: vec![],
        };
        let facts = Facts {
            cores: 1,
            memory: None,
            data,
            gpus: None,
            launched_world: None,
            local_rank: 0,
            nodes: 1,
        };
        let model = ModelFacts {
            parameters: vec![("w".to_owned(), vec![1])],
            buffers: vec![],
            least_rows: None,
        };
        Plan::new(&loaded, &facts, &|_: &crate::plan::ModelPlan| Ok(model.clone()))
            .map_err(|problems| problems.page(false, 80))
    }

    fn rates(plan: &Plan) -> Vec<Rates> {
        let schedule = Schedule::new(&plan.schedule, plan.optimizer.lr);
        // One more than the run has: what the next step would use is shown, too.
        (0..=plan.length.total_steps)
            .map(|done| schedule.rates(done, &Plateau::default()))
            .collect()
    }

    const RULES: [&str; 8] = [
        "constant",
        "step",
        "multi_step scheduler.milestones=[0,1,3]",
        "exponential scheduler.gamma=0.5",
        "exponential scheduler.interval=step scheduler.gamma=30.0",
        "cosine",
        "one_cycle",
        "noam scheduler.d_model=4",
    ];

    proptest! {
        #[test]
        fn every_rate_of_a_legal_plan_is_a_number_and_not_negative(
            (rule, total, warmup) in (0..RULES.len(), 1..9u64, 0..9u64),
            (lr, pct_start, by_step) in (0..3usize, 0..=10u32, any::<bool>()),
        ) {
            let mut keys = vec![format!("optimizer.lr={}", [0.0, 1e-3, 1e6][lr])];
            keys.extend(format!("scheduler.name={}", RULES[rule]).split(' ').map(str::to_owned));
            keys.push(format!("scheduler.warmup={warmup} steps"));
            if by_step {
                keys.push("scheduler.interval=step".to_owned());
            }
            if RULES[rule] == "one_cycle" {
                keys.push(format!("scheduler.pct_start={}", f64::from(pct_start) / 10.0));
            }
            if let Ok(plan) = planned(&keys, total) {
                for Rates { lr, momentum } in rates(&plan) {
                    prop_assert!(lr.is_finite() && lr >= 0.0, "{keys:?} in {total} steps: {lr}");
                    prop_assert!(momentum.is_none_or(|m| (0.0..1.0).contains(&m)), "{momentum:?}");
                }
            }
        }
    }

    #[test]
    fn one_cycle_begins_after_the_warm_up_and_ends_with_the_run() {
        let keys = ["scheduler.name=one_cycle", "scheduler.warmup=4 steps"].map(str::to_owned);
        let found = rates(&planned(&keys, 24).unwrap());
        let alone = rates(&planned(&keys[..1], 20).unwrap());
        // Up to the cycle's first rate, a 25th of the peak, then the cycle as it is without a warm-up.
        for (step, expected) in [0.01, 0.2575, 0.505, 0.7525].into_iter().enumerate() {
            assert!((found[step].lr - 0.02 * expected).abs() < 1e-12, "{found:?}");
            assert_eq!(found[step].momentum, Some(0.95));
        }
        assert_eq!(found[4..], alone);
        let peak = found.iter().map(|rates| rates.lr).fold(0.0, f64::max);
        assert!((peak - 0.5).abs() < 1e-12 && (found[23].lr - 2e-6).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn a_cycle_without_a_rising_step_is_refused() {
        let cycle = |pct_start: f64, total| {
            let keys = ["scheduler.name=one_cycle", &format!("scheduler.pct_start={pct_start}")];
            planned(&keys.map(str::to_owned), total)
        };
        // PyTorch divides by zero where the product is 1.
        for (pct_start, total) in [(0.5, 2), (1.0, 1), (0.1, 10), (0.3, 3), (0.3, 1)] {
            let page = cycle(pct_start, total).unwrap_err();
            assert!(page.contains("leaves no step in which the rate rises"), "{page}");
        }
        for (pct_start, total) in [(0.3, 4), (1.0, 2), (0.0, 1), (0.0, 9)] {
            assert!(cycle(pct_start, total).is_ok(), "{pct_start} of {total} steps");
        }
    }

    #[test]
    fn a_rate_that_rises_past_every_number_is_refused() {
        let keys = |gamma: &str| {
            let interval = "scheduler.interval=step";
            ["scheduler.name=exponential", interval, &format!("scheduler.gamma={gamma}")]
                .map(str::to_owned)
        };
        assert!(planned(&keys("10.0"), 30).is_ok());
        let page = planned(&keys("10.0"), 300).unwrap_err();
        assert!(page.contains("past the largest number"), "{page}");
    }

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
