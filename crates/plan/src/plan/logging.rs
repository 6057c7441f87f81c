//! The log of a run: its folder, how often a step is recorded, and the loggers.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::Experiment;
use crate::config::kind::{Entry, names_or_tables};
use crate::plan::Interval;

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
pub(super) fn decide(experiment: &Experiment) -> LoggingPlan {
    let config = &experiment.logging;
    LoggingPlan { dir: config.dir.clone(), every: config.every.into(), sinks: config.sinks.clone() }
}
