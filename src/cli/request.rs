//! A run that is asked for: a new one, or one that is resumed.

use crate::cli::prepare::{OwnedRun, Prepared, open_run, warn_about};
use crate::cli::refusal::Refusal;
use crate::cli::resumed::ResumedRun;
use crate::cli::run_files::OtherData;

/// What is to be run.
pub(crate) struct RunRequest {
    pub(crate) prepared: Prepared,
    /// The run that is resumed; a new one has no folders yet.
    resumed: Option<ResumedRun>,
}

impl RunRequest {
    /// A new run; what may not be meant so is said.
    pub(crate) fn new(prepared: Prepared) -> Self {
        warn_about(&prepared);
        Self { prepared, resumed: None }
    }

    /// A run that goes on.
    pub(crate) fn of(prepared: Prepared, resumed: ResumedRun) -> Self {
        Self { resumed: Some(resumed), ..Self::new(prepared) }
    }

    /// Makes the run's folders, or takes possession of those of the run that is resumed.
    pub(crate) fn open(&self) -> Result<OwnedRun, Refusal> {
        match &self.resumed {
            Some(run) => run.own(&self.prepared),
            None => open_run(&self.prepared),
        }
    }

    /// What to do about data other than those that the run began with.
    pub(crate) fn other_data(&self) -> OtherData {
        self.resumed.as_ref().map_or(OtherData::Refused, |run| run.data)
    }
}
