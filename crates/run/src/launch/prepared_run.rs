//! A run that is ready to start.

use std::convert::Infallible;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, RunFolders};
use crate::user_error::{ErrorPage, ExitCode};

/// What the process that prepares a run gives to its ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PreparedRun {
    /// What to do.
    pub plan: Plan,
    /// Where the run's files are.
    pub folders: RunFolders,
    /// Whether to continue from the newest checkpoint.
    pub resume: bool,
}

/// Why a process that should prepare a run has none.
pub trait NotPrepared: fmt::Display {
    /// The exit code of all ranks that wait for it.
    fn exit_code(&self) -> ExitCode {
        ExitCode::Refused
    }
}

impl NotPrepared for ErrorPage {
    fn exit_code(&self) -> ExitCode {
        self.code()
    }
}

impl NotPrepared for String {}
impl NotPrepared for Infallible {}

/// What a process that waits for a run is told instead of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NoRun {
    /// Why there is none.
    pub reason: String,
    /// The exit code of all who are told.
    pub exit_code: ExitCode,
}

impl NoRun {
    /// One that does not fit: another program, experiment or world.
    pub(in crate::launch) fn unfit(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), exit_code: ExitCode::Refused }
    }

    /// `who` could not prepare it.
    pub(in crate::launch) fn of(who: &str, error: &impl NotPrepared) -> Self {
        let reason = format!("{who} could not prepare the run: {error}");
        Self { reason, exit_code: error.exit_code() }
    }
}

impl fmt::Display for NoRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}
