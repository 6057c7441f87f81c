//! When checkpoints are saved, and which are kept.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::Loaded;
use crate::config::values::Every;
use crate::plan::metrics::better;
use crate::plan::{Cadence, MetricFacts, Mode};

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

/// Checkpoints as asked. Without evaluations the training loss ranks them.
pub(crate) fn decide(loaded: &Loaded, metrics: &[MetricFacts]) -> CheckpointPlan {
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
