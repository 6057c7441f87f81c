//! Early stopping: the metric to watch, and the evaluations that it may go without improvement.

use serde::{Deserialize, Serialize};

use crate::config::Experiment;
use crate::plan::Mode;
use crate::terminal::counted;

/// When to stop early.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EarlyStoppingPlan {
    /// Metric to watch.
    pub monitor: String,
    /// Direction in which the metric is better.
    pub mode: Mode,
    /// Evaluations without improvement that are tolerated.
    pub patience: u64,
    /// Absolute improvement that counts.
    pub min_delta: f64,
}

impl EarlyStoppingPlan {
    /// "after 5 evaluations in a row without a better val/loss"
    pub(super) fn line(&self) -> String {
        let in_a_row = if self.patience == 1 { "" } else { " in a row" };
        let n = counted(self.patience, "evaluation");
        format!("after {n}{in_a_row} without a better {}", self.monitor)
    }
}

/// The plan of `[early_stopping]`, if it has a patience.
pub(super) fn decide(experiment: &Experiment) -> Option<EarlyStoppingPlan> {
    let config = &experiment.early_stopping;
    config.patience.map(|patience| EarlyStoppingPlan {
        monitor: config.monitor.clone(),
        mode: config.mode,
        patience,
        min_delta: config.min_delta,
    })
}
