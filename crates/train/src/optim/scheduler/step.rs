//! `scheduler.name = "step"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::optim::scheduler::{Scheduler, power};
use crate::plan::{Span, shown};

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
        format!("step: x {} every {} {}", shown(self.gamma), self.step_size, span.unit())
    }
}
