//! A sweep as it was asked for: a file with `base` and `[sweep]`, or an experiment with spaces on
//! the command line, in Hydra's words.
//!
//! ```text
//! sweep.toml, key=choice(a,b) ─read─▶ Sweep + Loaded base | Problems, each with a caret
//! ```
//!
//! Note that parameters keep the order in which they were written, but random draws depend on a
//! parameter's name only, not on its position.

mod checks;
mod constraint;
mod file;
mod hydra;
mod json_schema;
mod load;
mod space;
mod start;
mod conflicts;

use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use conflicts::{MAX_POINTS, watching};
pub use constraint::Constraint;
pub use json_schema::{json_schema, reference};
pub use load::{is_space, is_sweep_word, load, load_alone, metric_problem};
pub use space::{Condition, Domain, Parameter, change_of, in_order, in_toml};
pub use space::{
    REPEAT_KEYS, as_written, canonical, descend, is_inside, is_repeat, on_grid, ordered,
    setting_of, steps_of, value_in, value_of,
};

use crate::config::kind::{Choice, Options};
use crate::config::schema::Mode;
use crate::config::values::Auto;

/// The key of the search method.
pub const METHOD: &str = "sweep.method";
/// The table of the pruner.
pub const PRUNER: &str = "sweep.pruner";

/// A value of a parameter: whatever TOML can say.
pub type Json = serde_json::Value;

/// The parameters of one trial: key and value, in the order in which the parameters were written;
/// those whose condition does not hold are absent.
pub type Values = Vec<(String, Json)>;

/// The search space and the method: everything that decides the values of the trials.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// The method that chooses the values of trials.
    #[serde(serialize_with = "word_or_table", deserialize_with = "kind")]
    pub method: Choice,
    /// Validation metric that ranks trials.
    pub metric: String,
    /// Direction in which the metric is better.
    pub goal: Mode,
    /// Seed of all draws.
    pub seed: u64,
    /// Parameters, in the order in which they were written.
    pub parameters: Vec<Parameter>,
    /// Rules that the values of a trial must satisfy.
    pub constraints: Vec<Constraint>,
    /// `[[sweep.list]]`: trials that are written down.
    pub list: Vec<Values>,
    /// `[[sweep.start]]`: settings that are tried before any that the method draws.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start: Vec<Values>,
    /// Trials per setting at most, with other folds or seeds; only settings that may still be the
    /// best have more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeats: Option<u32>,
    /// When a trial is given up early.
    #[serde(serialize_with = "table", deserialize_with = "kind")]
    pub pruner: Choice,
    /// Ranks of each trial.
    pub devices_per_trial: u32,
}

impl Search {
    /// True if a fold or seed among the parameters depends on other keys, or others depend on it.
    pub fn ties_repeats(&self) -> bool {
        let is_tied = |parameter: &Parameter| {
            let depends = || parameter.when.iter().any(|condition| is_repeat(&condition.key));
            if is_repeat(&parameter.key) { !parameter.when.is_empty() } else { depends() }
        };
        let names = |rule: &Constraint| rule.names().iter().any(|key| is_repeat(key));
        self.parameters.iter().any(is_tied) || self.constraints.iter().any(names)
    }
}

/// A kind as a file would write it where a word alone will do.
fn word_or_table<S: Serializer>(kind: &Choice, serializer: S) -> Result<S::Ok, S::Error> {
    if kind.options.is_empty() {
        return serializer.serialize_str(&kind.name);
    }
    table(kind, serializer)
}

/// A kind as a table of its name and its options.
fn table<S: Serializer>(kind: &Choice, serializer: S) -> Result<S::Ok, S::Error> {
    let name = ("name", &Json::from(kind.name.as_str()));
    let options = kind.options.iter().map(|(key, value)| (key.as_str(), value));
    serializer.collect_map([name].into_iter().chain(options))
}

/// A kind as [`word_or_table`] or [`table`] writes it; an option that is null is not set.
fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Choice, D::Error> {
    let table = match Json::deserialize(deserializer)? {
        Json::String(name) => return Ok(Choice::named(&name)),
        Json::Object(table) => table,
        other => {
            return Err(D::Error::custom(format!("expected a name or a table, not `{other}`")));
        }
    };
    let mut options: Options = table.into_iter().filter(|(_, value)| !value.is_null()).collect();
    match options.remove("name") {
        Some(Json::String(name)) => Ok(Choice { name, options }),
        _ => Err(D::Error::missing_field("name")),
    }
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
    /// The search space and the method.
    pub search: Search,
    /// Trials in all; `None` = all points of the grid or list.
    pub trials: Option<usize>,
    /// Time after which a start of the sweep stops.
    pub time: Option<Duration>,
    /// Value of the metric with which the sweep ends.
    pub until: Option<f64>,
    /// Settings in a row without a better one after which the sweep ends.
    pub patience: Option<usize>,
    /// Trials that share a device.
    pub trials_per_device: u32,
    /// Trials that run at the same time.
    pub concurrent_trials: Auto<u32>,
    /// Failed trials after which the sweep ends.
    pub max_failures: u32,
    /// True if pruned trials keep their checkpoints.
    pub keep_pruned_checkpoints: bool,
}
