//! `scheduler.name = "noam"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::optim::scheduler::Scheduler;
use crate::plan::Span;

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
