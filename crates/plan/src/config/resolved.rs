//! `Experiment` -> TOML that is itself an experiment, and what differs between two of them.

use serde_json::Value;

use crate::config::keys::dotted;
use crate::config::kind::TABLES;
use crate::config::schema::{Experiment, PrecisionChoice};

/// The whole experiment as TOML, every key decided; `ddprun resolved.toml` does the same again.
///
/// # Errors
///
/// A value that TOML cannot hold; none can come out of a loaded experiment.
pub fn resolved(experiment: &Experiment) -> Result<String, toml::ser::Error> {
    let head = "# Written by ddprun: every key of this run, runnable as it is.\n\n";
    let mut table = present(experiment.to_json());
    if experiment.train.precision != PrecisionChoice::Fp16 {
        // Its numbers have no meaning here, and asking for them would be refused.
        table.as_object_mut().and_then(|keys| keys.shift_remove("loss_scale"));
    }
    Ok(head.to_owned() + &toml::to_string(&table)?)
}

/// The value without its absent parts, which TOML cannot say.
fn present(value: Value) -> Value {
    match value {
        Value::Object(keys) => keys
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key, present(value)))
            .collect(),
        Value::Array(items) => items.into_iter().map(present).collect(),
        other => other,
    }
}

/// A key whose value differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Dotted name.
    pub key: String,
    /// Value before, as JSON; `None` = absent.
    pub old: Option<String>,
    /// Value after.
    pub new: Option<String>,
}

impl std::fmt::Display for Change {
    /// "`train.epochs`: 50 -> 60"
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let show = |value: &Option<String>| value.clone().unwrap_or_else(|| "absent".to_owned());
        write!(f, "`{}`: {} -> {}", self.key, show(&self.old), show(&self.new))
    }
}

/// Keys that may change when a run is continued, because no number of the finished part depends on
/// them; a table stands for all of its keys.
pub const SAFE_ON_RESUME: [&str; 24] = [
    "experiment.tags",
    "train.epochs",
    "train.steps",
    "train.time",
    "data.num_workers",
    "data.prefetch_factor",
    "data.on_bad_sample",
    "data.max_bad_fraction",
    "distributed.devices",
    "distributed.min_world_size",
    "distributed.threads_per_rank",
    "distributed.timeout",
    "distributed.overlap",
    "distributed.zero_stage",
    "distributed.bucket_cap",
    "distributed.first_bucket_cap",
    "validation.every",
    "validation.sample_every",
    "validation.metrics",
    "checkpoint",
    "logging",
    "early_stopping",
    "fault",
    "expect",
];

/// Of these, what cannot change all the same: what was written so far is there.
const FOLDERS: [&str; 2] = ["checkpoint.dir", "logging.dir"];

/// All keys whose values differ, in the order of their names; a list is one key.
pub fn changed_keys(old: &Experiment, new: &Experiment) -> Vec<Change> {
    let (old, new) = (leaves(old), leaves(new));
    let keys: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    // Options that only one of two kinds has are a consequence of the other name.
    let of_other_kind = |key: &str| {
        TABLES.iter().any(|table| {
            let name = format!("{table}.name");
            let is_option = key.starts_with(table) && key[table.len()..].starts_with('.');
            let in_one = old.contains_key(key) != new.contains_key(key);
            is_option && in_one && old.get(&name) != new.get(&name)
        })
    };
    keys.into_iter()
        .filter(|key| old.get(*key) != new.get(*key) && !of_other_kind(key))
        .map(|key| Change {
            key: key.clone(),
            old: old.get(key).cloned(),
            new: new.get(key).cloned(),
        })
        .collect()
}

/// The changes between the experiment of a run and the one it is to be continued with.
///
/// # Errors
///
/// The changes that are not safe, if there are any.
pub fn refuse_unsafe(old: &Experiment, new: &Experiment) -> Result<Vec<Change>, Vec<Change>> {
    let changes = changed_keys(old, new);
    let refused: Vec<Change> = changes.iter().filter(|c| !is_safe(&c.key)).cloned().collect();
    if refused.is_empty() { Ok(changes) } else { Err(refused) }
}

fn is_safe(key: &str) -> bool {
    let is_in = |table: &&str| {
        key.strip_prefix(*table).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    !is_folder(key) && SAFE_ON_RESUME.iter().any(is_in)
}

/// Whether this is the key of a folder that a run stays in.
pub fn is_folder(key: &str) -> bool {
    FOLDERS.contains(&key)
}

/// Every key that has a value, and the value as JSON.
pub fn leaves(experiment: &Experiment) -> std::collections::BTreeMap<String, String> {
    let whole = experiment.to_json();
    let mut found = std::collections::BTreeMap::new();
    let mut open = vec![(Vec::new(), whole)];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::Null => {}
            Value::Object(keys) => open.extend(
                keys.into_iter()
                    .map(|(key, value)| (path.iter().cloned().chain([key]).collect(), value)),
            ),
            value => {
                found.insert(dotted(&path), value.to_string());
            }
        }
    }
    found
}
