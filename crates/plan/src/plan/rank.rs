//! What one rank is told.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::plan::Plan;
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
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunFolders {
    /// `<time>-<id>`
    pub id: String,
    /// `logs/<name>/<id>`
    pub logs: PathBuf,
    /// `checkpoints/<name>/<id>`
    pub checkpoints: PathBuf,
}
