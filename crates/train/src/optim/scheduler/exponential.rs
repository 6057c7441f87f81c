//! `scheduler.name = "exponential"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::optim::scheduler::{Scheduler, power};
use crate::plan::{Span, Unfit, shown};

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
        format!("exponential: x {} per interval ({})", shown(self.gamma), span.unit())
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
