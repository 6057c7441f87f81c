//! Rates that do not depend on the length of the run: `scheduler.name = "constant"`, `"step"`,
//! `"multi_step"`, `"exponential"`, `"noam"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
use crate::optim::scheduler::Scheduler;
use crate::plan::{Span, Unfit, format_number};

/// the same rate throughout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Constant {}

impl Kind for Constant {
    const NAME: &'static str = "constant";
}

impl Scheduler for Constant {
    fn lr(&self, _: u64, span: &Span) -> f64 {
        span.lr
    }

    fn describe(&self, _: &Span) -> String {
        Self::NAME.to_owned()
    }
}

/// the rate drops every `step_size` intervals, as PyTorch's `StepLR`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StepLr {
    /// intervals between drops.
    #[schemars(range(min = 1))]
    pub step_size: u64,
    /// factor of a drop.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub gamma: f64,
}

impl Default for StepLr {
    fn default() -> Self {
        Self { step_size: 30, gamma: 0.1 }
    }
}

impl Kind for StepLr {
    const NAME: &'static str = "step";
}

impl Scheduler for StepLr {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        span.lr * power(self.gamma, t / self.step_size.max(1))
    }

    fn describe(&self, span: &Span) -> String {
        format!("step: x {} every {} {}", format_number(self.gamma), self.step_size, span.unit())
    }
}

/// the rate drops at each milestone, as PyTorch's `MultiStepLR`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MultiStepLr {
    /// intervals after which the rate drops, ascending.
    #[schemars(example = [30, 60, 80])]
    pub milestones: Vec<u64>,
    /// factor of a drop.
    #[serde(default = "gamma")]
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0.0))]
    pub gamma: f64,
}

fn gamma() -> f64 {
    StepLr::default().gamma
}

impl Kind for MultiStepLr {
    const NAME: &'static str = "multi_step";

    fn check(&self) -> Vec<OptionConflict> {
        let ascending = self.milestones.windows(2).all(|pair| pair[0] < pair[1]);
        if ascending && !self.milestones.is_empty() {
            return Vec::new();
        }
        let what = "must be whole numbers, each larger than the one before".to_owned();
        vec![OptionConflict { key: "milestones", with: &[], what }]
    }
}

impl Scheduler for MultiStepLr {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        let passed = self.milestones.iter().filter(|&&at| at <= t).count();
        span.lr * power(self.gamma, passed as u64)
    }

    fn describe(&self, span: &Span) -> String {
        let Self { milestones, gamma } = self;
        format!("multi_step: x {} after {milestones:?} {}", format_number(*gamma), span.unit())
    }
}

/// the rate is multiplied by `gamma` after each interval, as PyTorch's `ExponentialLR`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExponentialLr {
    /// factor of a drop.
    #[schemars(extend("exclusiveMinimum" = 0.0), example = 0.9)]
    pub gamma: f64,
}

impl Kind for ExponentialLr {
    const NAME: &'static str = "exponential";
}

impl Scheduler for ExponentialLr {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        (span.lr * power(self.gamma, t)).min(f64::from(f32::MAX))
    }

    fn describe(&self, span: &Span) -> String {
        format!("exponential: x {} per interval ({})", format_number(self.gamma), span.unit())
    }

    fn fits(&self, span: &Span) -> Result<(), Unfit> {
        let (gamma, lr, key) = (self.gamma, span.lr, "gamma");
        // A rate that rises without end is a slip, but for a test of learning rates, which rises
        // with every step.
        if gamma > 1.0 && !span.by_steps {
            let what = format!("must be greater than 0 and at most 1, not {gamma}");
            return Err(Unfit { key, what, help: None });
        }
        let moves = span.intervals.map_or(0, |intervals| intervals.saturating_sub(1));
        if lr * power(gamma, moves) <= f64::from(f32::MAX) {
            return Ok(());
        }
        let moves = moves.min(i32::MAX as u64);
        let what = format!(
            "takes the learning rate past the largest number of 32 bits: {lr} x {gamma}^{moves}"
        );
        let help = Some("train for fewer steps, or give a factor nearer to 1");
        Err(Unfit { key, what, help })
    }
}

/// `NoamAnnealing` of `NeMo` (Vaswani et al. 2017, section 5.3): `lr d_model^-0.5 min(n^-0.5, n
/// warmup^-1.5)` after n steps, at least 1. It includes the warm-up; `optimizer.lr` only scales it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoamAnnealing {
    /// width of the model.
    #[schemars(range(min = 1, max = 65536), example = 176)]
    pub d_model: u32,
    /// lowest learning rate after the warm-up.
    #[serde(default)]
    #[schemars(range(min = 0.0), example = 1e-6)]
    pub min_lr: f64,
}

impl Kind for NoamAnnealing {
    const NAME: &'static str = "noam";
}

impl Scheduler for NoamAnnealing {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        let scale = f64::from(self.d_model).powf(-0.5);
        let n = t.max(1) as f64;
        let warmup = span.warmup_steps as f64;
        let falls = n.powf(-0.5);
        if n > warmup {
            return (span.lr * scale * falls).max(self.min_lr);
        }
        span.lr * scale * falls.min(n * warmup.powf(-1.5))
    }

    fn describe(&self, span: &Span) -> String {
        let warmup = span.warmup_steps;
        format!(
            "noam: rises for {warmup} steps, then falls with the inverse square root of the step"
        )
    }

    fn moves_by_steps(&self) -> bool {
        true
    }

    fn has_own_warmup(&self) -> bool {
        true
    }
}

/// `gamma^n`, at most `f64::MAX`: a rate of 0 stays 0, and one that rises stays finite.
fn power(gamma: f64, n: u64) -> f64 {
    gamma.powi(i32::try_from(n).unwrap_or(i32::MAX)).min(f64::MAX)
}
