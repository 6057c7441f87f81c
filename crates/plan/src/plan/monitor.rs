//! Checkpoints, early stopping and the log: when a run saves, which metric ranks checkpoints, when
//! it gives up, and how often it records a step.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, names_or_tables};
use crate::config::values::Every;
use crate::config::{Experiment, Loaded};
use crate::plan::metrics::better;
use crate::plan::{Cadence, MetricFacts, Mode};
use crate::terminal::counted;

/// When and where to save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointPlan {
    /// Folder of all runs' checkpoints.
    pub dir: PathBuf,
    /// Interval of regular checkpoints.
    pub every: Cadence,
    /// Number of newest checkpoints to keep.
    pub keep_last: usize,
    /// Number of best checkpoints to keep.
    pub keep_best: usize,
    /// Metric that ranks checkpoints.
    pub monitor: String,
    /// Direction in which the metric is better.
    pub mode: Mode,
}

/// The plan of `[checkpoint]`. Without evaluations the training loss ranks checkpoints.
pub(super) fn checkpoint(loaded: &Loaded, metrics: &[MetricFacts]) -> CheckpointPlan {
    let experiment = &loaded.experiment;
    let config = &experiment.checkpoint;
    // Without regular checkpoints, best ones are kept only if they were asked for.
    let keeps_best = config.every != Every::Never || loaded.is_given("checkpoint.keep_best");
    let unmeasured =
        experiment.validation.every == Every::Never && config.monitor.starts_with("val/");
    let monitor = if unmeasured { "train/loss".to_owned() } else { config.monitor.clone() };
    CheckpointPlan {
        dir: config.dir.clone(),
        every: config.every.into(),
        keep_last: config.keep_last as usize,
        keep_best: if keeps_best { config.keep_best as usize } else { 0 },
        mode: better(&monitor, metrics),
        monitor,
    }
}

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
pub(super) fn early_stopping(experiment: &Experiment) -> Option<EarlyStoppingPlan> {
    let config = &experiment.early_stopping;
    config.patience.map(|patience| EarlyStoppingPlan {
        monitor: config.monitor.clone(),
        mode: config.mode,
        patience,
        min_delta: config.min_delta,
    })
}

/// The log of a run: its folder, its interval and its loggers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggingPlan {
    /// Folder of all runs' logs.
    pub dir: PathBuf,
    /// Interval at which a step is recorded.
    pub every: Cadence,
    /// Loggers with their options.
    #[serde(serialize_with = "names_or_tables")]
    pub sinks: Vec<Entry>,
}

/// The plan of `[logging]`.
pub(super) fn logging(experiment: &Experiment) -> LoggingPlan {
    let config = &experiment.logging;
    LoggingPlan { dir: config.dir.clone(), every: config.every.into(), sinks: config.sinks.clone() }
}
