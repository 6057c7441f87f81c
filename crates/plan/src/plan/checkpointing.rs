//! When things happen, what is kept of them, and when the run gives up.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, names_or_tables};
use crate::config::values::Every;
use crate::config::{Experiment, Loaded};
use crate::plan::metrics::better;
use crate::plan::{MetricFacts, Mode};

/// Something that happens every n steps, at the end of every n-th epoch, or never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cadence {
    /// Never.
    #[default]
    Never,
    /// After every n-th epoch (and at the end of the run).
    Epochs(u64),
    /// After every n-th step (and at the end of the run).
    Steps(u64),
}

/// When and where to save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointPlan {
    /// Folder of all runs' checkpoints.
    pub dir: PathBuf,
    /// When.
    pub every: Cadence,
    /// Newest to keep.
    pub keep_last: usize,
    /// Best to keep.
    pub keep_best: usize,
    /// Metric that ranks checkpoints.
    pub monitor: String,
    /// Less or more of it is better.
    pub mode: Mode,
}

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

/// What to write about the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggingPlan {
    /// Folder of all runs' logs.
    pub dir: PathBuf,
    /// How often a step is recorded.
    pub every: Cadence,
    /// What to write.
    #[serde(serialize_with = "names_or_tables")]
    pub sinks: Vec<Entry>,
}

impl From<Every> for Cadence {
    fn from(every: Every) -> Self {
        match every {
            Every::Never => Self::Never,
            Every::Epochs(n) => Self::Epochs(n),
            Every::Steps(n) => Self::Steps(n),
        }
    }
}

impl Cadence {
    /// Whether it happens after `step` (counted from 1), which is or is not the last of the
    /// `epoch`-th epoch.
    pub fn is_due(self, step: u64, epoch: u64, ends_epoch: bool) -> bool {
        match self {
            Self::Never => false,
            Self::Epochs(n) => ends_epoch && epoch.is_multiple_of(n),
            Self::Steps(n) => step.is_multiple_of(n),
        }
    }
}

/// Checkpoints as asked. Without evaluations the training loss ranks them.
pub(crate) fn checkpoint(loaded: &Loaded, metrics: &[MetricFacts]) -> CheckpointPlan {
    let experiment = &loaded.experiment;
    let asked = &experiment.checkpoint;
    // Without regular checkpoints, best ones are kept only if they were asked for.
    let keeps_best = asked.every != Every::Never || loaded.is_given("checkpoint.keep_best");
    let unmeasured =
        experiment.validation.every == Every::Never && asked.monitor.starts_with("val/");
    let monitor = if unmeasured { "train/loss".to_owned() } else { asked.monitor.clone() };
    CheckpointPlan {
        dir: asked.dir.clone(),
        every: asked.every.into(),
        keep_last: asked.keep_last as usize,
        keep_best: if keeps_best { asked.keep_best as usize } else { 0 },
        mode: better(&monitor, metrics),
        monitor,
    }
}

/// Early stopping, if a patience was given.
pub(crate) fn early_stopping(experiment: &Experiment) -> Option<EarlyStoppingPlan> {
    let asked = &experiment.early_stopping;
    asked.patience.map(|patience| EarlyStoppingPlan {
        monitor: asked.monitor.clone(),
        mode: asked.mode,
        patience,
        min_delta: asked.min_delta,
    })
}

/// Logging as asked.
pub(crate) fn logging(experiment: &Experiment) -> LoggingPlan {
    let asked = &experiment.logging;
    LoggingPlan { dir: asked.dir.clone(), every: asked.every.into(), sinks: asked.sinks.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cadence_counts_steps_or_whole_epochs() {
        let due = |cadence: Cadence| -> Vec<u64> {
            // Epochs of 4 steps.
            (1..=16).filter(|&step| cadence.is_due(step, step.div_ceil(4), step % 4 == 0)).collect()
        };
        assert!(due(Cadence::Never).is_empty());
        assert_eq!(due(Cadence::Steps(5)), [5, 10, 15]);
        assert_eq!(due(Cadence::Epochs(1)), [4, 8, 12, 16]);
        assert_eq!(due(Cadence::Epochs(2)), [8, 16]);
    }
}
