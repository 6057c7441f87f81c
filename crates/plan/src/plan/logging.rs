//! What is written about a run, where, and how often.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::Experiment;
use crate::config::kind::{Entry, names_or_tables};
use crate::plan::Cadence;

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

/// Logging as asked.
pub(crate) fn decide(experiment: &Experiment) -> LoggingPlan {
    let asked = &experiment.logging;
    LoggingPlan { dir: asked.dir.clone(), every: asked.every.into(), sinks: asked.sinks.clone() }
}
