//! `Experiment` -> TOML that is itself an experiment, and what differs between two of them.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::config::keys::{dotted, path_of};
use crate::config::kind::TABLES;
use crate::config::schema::{DECLARED, Experiment, PrecisionChoice};
use crate::config::table::{FOLDER, SAFE, TAKEN, rule, saying};
use crate::config::vocabulary::Vocabulary;

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
pub fn refuse_unsafe(
    old: &Experiment,
    new: &Experiment,
    vocabulary: &Vocabulary,
) -> Result<Vec<Change>, Vec<Change>> {
    let changes = changed_keys(old, new);
    let is_safe = |key: &str| is_safe(key) || is_safe_option(key, &new.data.name, vocabulary);
    let refused: Vec<Change> = changes.iter().filter(|c| !is_safe(&c.key)).cloned().collect();
    if refused.is_empty() { Ok(changes) } else { Err(refused) }
}

fn is_safe(key: &str) -> bool {
    rule(&DECLARED, &path_of(key), "x-resume") == Some(SAFE)
}

/// True if the data set `name` declares that its option `key` changes no sample.
fn is_safe_option(key: &str, name: &str, vocabulary: &Vocabulary) -> bool {
    let option = key
        .strip_prefix("data.")
        .and_then(|option| vocabulary.family("data")?.kind(name)?.key(option));
    option.is_some_and(|option| option.schema["x-resume"] == SAFE)
}

/// Tables and keys that can change when a run is continued, by their dotted names; a table stands
/// for all of its keys but its folder.
pub fn safe_on_resume() -> Vec<String> {
    saying(&DECLARED, "x-resume", SAFE).iter().map(|path| dotted(path)).collect()
}

/// True if this is the key of a folder that a run cannot leave.
pub fn is_folder(key: &str) -> bool {
    rule(&DECLARED, &path_of(key), "x-resume") == Some(FOLDER)
}

/// Why a key changes no evaluation of a run; `None` if it does.
pub fn no_use_in_evaluations(key: &str) -> Option<&'static str> {
    rule(&DECLARED, &path_of(key), "x-eval").filter(|why| *why != TAKEN)
}

/// Every key that has a value, and the value as JSON.
pub fn leaves(experiment: &Experiment) -> BTreeMap<String, String> {
    let leaves = leaves_of(experiment.to_json()).into_iter();
    leaves.map(|(key, value)| (key, value.to_string())).collect()
}

/// The values of a configuration by dotted key; a list is one value, and an absent one is left out.
pub fn leaves_of(config: Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let mut open = vec![(Vec::new(), config)];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::Null => {}
            Value::Object(keys) => open.extend(
                keys.into_iter()
                    .map(|(key, value)| (path.iter().cloned().chain([key]).collect(), value)),
            ),
            value => {
                found.insert(dotted(&path), value);
            }
        }
    }
    found
}
