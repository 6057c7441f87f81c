//! `scheduler.name = "cosine"`

use std::f64::consts::PI;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Need};
use crate::optim::scheduler::Scheduler;
use crate::plan::{Span, Unfit, shown};

/// the rate falls along half a cosine to the end of the run, as PyTorch's `CosineAnnealingLR`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CosineAnnealingLr {
    /// lowest learning rate; at most the scaled `optimizer.lr`.
    #[schemars(range(min = 0.0), example = 1e-5)]
    pub eta_min: f64,
}

impl Kind for CosineAnnealingLr {
    const NAME: &'static str = "cosine";
    const NEEDS: &'static [Need] = &[Need::LastStep];
}

/// Intervals to the minimum.
fn t_max(span: &Span) -> u64 {
    span.intervals.unwrap_or(u64::MAX)
}

impl Scheduler for CosineAnnealingLr {
    fn lr(&self, t: u64, span: &Span) -> f64 {
        let t_max = t_max(span);
        let eta_min = self.eta_min;
        let share = t.min(t_max) as f64 / t_max.max(1) as f64;
        eta_min + (span.lr - eta_min) * (1.0 + (PI * share).cos()) / 2.0
    }

    fn describe(&self, span: &Span) -> String {
        format!("cosine over {} {} to {}", t_max(span), span.unit(), shown(self.eta_min))
    }

    fn fits(&self, span: &Span) -> Result<(), Unfit> {
        if self.eta_min <= span.lr {
            return Ok(());
        }
        let what = format!("must be at most the learning rate, {}", span.lr);
        Err(Unfit { key: "eta_min", what, help: None })
    }
}
