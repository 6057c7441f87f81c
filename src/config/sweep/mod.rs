//! A sweep as it was asked for: a file with `base` and `[sweep]`, or an experiment with spaces on the command
//! line, in Hydra's words.
//!
//! ```text
//! sweep.toml, key=choice(a,b) ─read─▶ Sweep + Loaded base | Problems, each with a caret
//! ```
//!
//! What a reader would get wrong: parameters keep the order in which they were written, and every random draw
//! depends on it only through the parameter's name.

mod checks;
mod constraint;
mod hydra;
mod load;
mod reader;
mod space;
mod together;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use constraint::Constraint;
pub(crate) use load::is_space;
pub use load::{is_sweep_word, load};
pub use space::{Condition, Domain, Parameter, change_of};
pub(crate) use space::{as_written, in_order, on_grid, ordered, steps_of, value_of};
pub(crate) use together::{MOST_POINTS, watching};

use crate::config::schema::Mode;
use crate::config::values::{Auto, Every};

/// A value of a parameter: whatever TOML can say.
pub type Json = serde_json::Value;

/// The parameters of one trial: key and value, in the order in which the parameters were written; those whose
/// condition does not hold are absent.
pub type Values = Vec<(String, Json)>;

/// Which values are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Every combination, the last parameter fastest.
    Grid,
    /// Independent draws.
    Random,
    /// Draws near what was good: the tree-structured Parzen estimator (Bergstra et al. 2011).
    Tpe,
    /// The values that the file lists.
    List,
    /// One run whose learning rate rises: the learning-rate range test (Smith 2017).
    LrRange,
}

/// When a trial is given up early.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "snake_case")]
pub enum Pruner {
    /// Never.
    None,
    /// Asynchronous successive halving (Li et al. 2020), the variant that stops.
    Asha {
        /// The first rung.
        min_resource: Every,
        /// Where pruning ends; `None` = the run's own length.
        max_resource: Option<Every>,
        /// One of this many goes on at each rung, and rungs grow by it.
        reduction_factor: u64,
    },
    /// The median stopping rule (Golovin et al. 2017).
    Median {
        /// Before this, nothing is stopped.
        min_resource: Every,
        /// Finished trials before anything is stopped.
        startup_trials: u64,
    },
}

/// Bounds of a learning-rate range test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LrRange {
    /// First learning rate.
    pub min: f64,
    /// Last learning rate.
    pub max: f64,
    /// Steps from one to the other, equally far apart by ratio.
    pub steps: u64,
}

/// What is searched, and how: whatever decides the values of the trials.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Search {
    /// Which values are tried.
    pub method: Method,
    /// Validation metric that ranks trials.
    pub metric: String,
    /// Whether less or more of it is better.
    pub goal: Mode,
    /// Seed of all draws.
    pub seed: u64,
    /// In the order in which they were written.
    pub parameters: Vec<Parameter>,
    /// What a trial's values must fulfil.
    pub constraints: Vec<Constraint>,
    /// Trials of the method `list`.
    pub list: Vec<Values>,
    /// When a trial is given up early.
    pub pruner: Pruner,
    /// The method `lr_range`.
    pub lr_range: Option<LrRange>,
    /// Ranks of each trial.
    pub devices_per_trial: u32,
}

/// A sweep, as asked.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// Name of its folder.
    pub name: String,
    /// The file that was named: the sweep file, or the experiment itself.
    pub path: PathBuf,
    /// The experiment that all trials change.
    pub base: PathBuf,
    /// Changes that all trials have in common.
    pub changes: Vec<String>,
    /// What is searched, and how.
    pub search: Search,
    /// Trials in all; `None` = all points of the grid or list.
    pub trials: Option<usize>,
    /// Trials that share a device.
    pub trials_per_device: u32,
    /// Trials that run at the same time.
    pub concurrent_trials: Auto<u32>,
    /// Failed trials after which the sweep ends.
    pub max_failures: u32,
    /// Whether trials that were given up keep their checkpoints.
    pub keep_pruned_checkpoints: bool,
}
