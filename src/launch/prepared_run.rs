//! A run that is ready to start.

use serde::{Deserialize, Serialize};

use crate::plan::{Plan, RunFolders};

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
