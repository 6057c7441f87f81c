//! `scheduler.name = "multi_step"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Wrong};
use crate::optim::scheduler::{Scheduler, StepLr, power};
use crate::plan::{Span, shown};

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

    fn check(&self) -> Vec<Wrong> {
        let ascending = self.milestones.windows(2).all(|pair| pair[0] < pair[1]);
        if ascending && !self.milestones.is_empty() {
            return Vec::new();
        }
        let what = "must be whole numbers, each larger than the one before".to_owned();
        vec![Wrong { key: "milestones", with: &[], what }]
    }
}

impl Scheduler for MultiStepLr {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        let passed = self.milestones.iter().filter(|&&at| at <= t).count();
        span.lr * power(self.gamma, passed as u64)
    }

    fn describe(&self, span: &Span) -> String {
        let Self { milestones, gamma } = self;
        format!("multi_step: x {} after {milestones:?} {}", shown(*gamma), span.unit())
    }
}
