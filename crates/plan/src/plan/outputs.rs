//! What a run writes: its checkpoints (when, ranked by which metric, how many are kept), their
//! mirror, and its log.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::kind::{Entry, names_or_tables};
use crate::config::schema::Checkpoint;
use crate::config::values;
use crate::config::{Experiment, Loaded, Mirror};
use crate::plan::metrics::better;
use crate::plan::{Interval, MetricFacts, Mode};

/// When and where to save.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointPlan {
    /// Folder of all runs' checkpoints.
    pub dir: PathBuf,
    /// Interval of regular checkpoints.
    pub every: Interval,
    /// Number of newest checkpoints to keep.
    pub keep_last: usize,
    /// Number of best checkpoints to keep.
    pub keep_best: usize,
    /// Metric that ranks checkpoints.
    pub monitor: String,
    /// Direction in which the metric is better.
    pub mode: Mode,
}

/// The second place of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MirrorPlan {
    /// A folder or a command, as it was written.
    pub place: String,
    /// How long the end of the run waits for it, and after which its command is ended.
    pub timeout: values::Duration,
}

impl MirrorPlan {
    /// The mirror that `[checkpoint]` asks for.
    pub(super) fn of(config: &Checkpoint) -> Option<Self> {
        let place = config.mirror.clone()?;
        Some(Self { place, timeout: config.mirror_timeout })
    }

    /// "after each of them to `/mnt/backup`"
    pub(super) fn line(&self) -> String {
        match Mirror::of(&self.place) {
            Mirror::Folder(_) => format!("after each of them to `{}`", self.place),
            Mirror::Command(_) => format!("after each of them by `{}`", self.place),
        }
    }
}

impl CheckpointPlan {
    /// "after every epoch and at each new lowest val/loss; kept: newest 1, lowest val/loss 1"
    pub(super) fn line(&self, validate_every: Interval) -> String {
        let best = match self.mode {
            Mode::Min => "lowest",
            Mode::Max => "highest",
        };
        let best = format!("{best} {}", self.monitor);
        let mut when = match self.every {
            Interval::Never => "only when the run is stopped early".to_owned(),
            every => every.words(),
        };
        let mut kept = format!("newest {}", self.keep_last.max(1));
        if self.keep_best > 0 && validate_every != Interval::Never {
            when += &format!(" and at each new {best}");
            kept += &format!(", {best} {}", self.keep_best);
        }
        format!("{when}; kept: {kept}")
    }
}

/// The plan of `[checkpoint]`. Without evaluations the training loss ranks checkpoints.
pub(super) fn checkpoints(loaded: &Loaded, metrics: &[MetricFacts]) -> CheckpointPlan {
    let experiment = &loaded.experiment;
    let config = &experiment.checkpoint;
    // Without regular checkpoints, best ones are kept only if they were asked for.
    let keeps_best =
        config.every != values::Interval::Never || loaded.is_given("checkpoint.keep_best");
    let unmeasured = experiment.validation.every == values::Interval::Never
        && config.monitor.starts_with("val/");
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

/// The log of a run: its folder, its interval and its loggers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggingPlan {
    /// Folder of all runs' logs.
    pub dir: PathBuf,
    /// Interval at which a step is recorded.
    pub every: Interval,
    /// Loggers with their options.
    #[serde(serialize_with = "names_or_tables")]
    pub sinks: Vec<Entry>,
}

/// The plan of `[logging]`.
pub(super) fn log(experiment: &Experiment) -> LoggingPlan {
    let config = &experiment.logging;
    LoggingPlan { dir: config.dir.clone(), every: config.every.into(), sinks: config.sinks.clone() }
}
