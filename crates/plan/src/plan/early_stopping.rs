//! Early stopping: which metric is watched, and with how much patience.

use serde::{Deserialize, Serialize};

use crate::config::Experiment;
use crate::plan::Mode;
use crate::plan::batch::counted;

/// When to give up early.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlyStoppingPlan {
    /// Metric to watch.
    pub monitor: String,
    /// Less or more of it is better.
    pub mode: Mode,
    /// Evaluations without improvement that are tolerated.
    pub patience: u64,
    /// Absolute improvement that counts.
    pub min_delta: f64,
}

impl EarlyStoppingPlan {
    /// "after 5 evaluations in a row without a better val/loss"
    pub(crate) fn line(&self) -> String {
        let n = counted(self.patience, "evaluation", "evaluations in a row");
        format!("after {n} without a better {}", self.monitor)
    }
}

/// Early stopping, if a patience was given.
pub(crate) fn decide(experiment: &Experiment) -> Option<EarlyStoppingPlan> {
    let asked = &experiment.early_stopping;
    asked.patience.map(|patience| EarlyStoppingPlan {
        monitor: asked.monitor.clone(),
        mode: asked.mode,
        patience,
        min_delta: asked.min_delta,
    })
}
