//! What one rank is told.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
use crate::terminal::shell_word;
use train_numbers::units::Rank;

/// What one rank is told beside the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankPlan {
    /// The plan, equal on all ranks.
    pub plan: Plan,
    /// This rank.
    pub rank: Rank,
    /// Folders of this run.
    pub run: RunFolders,
    /// Continue from the newest checkpoint of the run.
    pub resume: bool,
    /// How often the group was restarted before.
    pub restarts: u32,
    /// Why, oldest first; empty where another launcher did it.
    pub causes: Vec<String>,
}

/// Folders of one run, made by the parent alone.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunFolders {
    /// `<time>-<id>`
    pub id: String,
    /// `logs/<name>/<id>`
    pub logs: PathBuf,
    /// `checkpoints/<name>/<id>`
    pub checkpoints: PathBuf,
}

impl RunFolders {
    /// The folder in which commands look for a run by its id.
    pub const LOGS: &str = "logs";

    /// What names the run with these logs in a command: its id or, where that would not be found,
    /// its folder.
    pub fn word(logs: &Path) -> String {
        let is_found = logs.ancestors().nth(2).is_some_and(|all| all == Path::new(Self::LOGS));
        let word = logs.file_name().filter(|_| is_found).unwrap_or(logs.as_os_str());
        shell_word(&word.to_string_lossy())
    }
}
