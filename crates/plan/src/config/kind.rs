//! Kinds: what `name = "..."` in a table chooses among, each declared once by a type.
//!
//! The fields of the type are the options of the kind: their types, defaults, ranges and meanings
//! are derived from it (`schemars`), as a [`Spec`]. Specs travel down to here as values, so
//! `config` checks the options of kinds that rooms above it, or a user's own program, declare.
//!
//! Each kind reads its options twice: here they are checked and completed with defaults, so that a
//! run can store them; where the kind is used, [`parse`] turns the stored options into the type
//! again.

mod list;
mod offer;
mod page;
mod schema;
mod spec;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use list::{ENTRY, OwnedList, names_or_tables};
pub use list::{Entry, LISTS, SINKS};
pub use offer::{BuiltinSplits, Capability, Modality};
pub(crate) use page::{index, one, page};
pub(crate) use schema::{name_of, of_kind, of_kind_named};
pub(crate) use spec::example;
pub use spec::{FamilySpec, Key, LeftOut, Spec, parse};

/// Options of a kind by name, as JSON.
pub type Options = BTreeMap<String, Value>;

/// Tables of an experiment whose `name` chooses a kind: the keys of such a table that all its kinds
/// share are in the schema, all others are options of the kind.
pub const TABLES: [&str; 5] = ["model", "data", "loss", "optimizer", "scheduler"];

/// The key that names a backend, or leaves it to the plan by "auto".
pub const BACKEND: &str = "distributed.backend";

/// A named member of a family; its fields are its options.
///
/// Options with a default are read with `#[serde(default)]`, the others are required. Ranges are
/// attributes of `schemars`: `#[schemars(range(min = 0.0, max = 1.0))]`.
pub trait Kind: Serialize + DeserializeOwned + JsonSchema + 'static {
    /// The value of `name`.
    const NAME: &'static str;

    /// Requirements on the rest of the experiment or sweep.
    const REQUIREMENTS: &'static [Requirement] = &[];

    /// Capabilities that the rest of the experiment may use.
    const CAPABILITIES: &'static [Capability] = &[];

    /// The value of `name` for this instance, where several names stand for one type that differs
    /// in a field of its own.
    fn name(&self) -> &'static str {
        Self::NAME
    }

    /// Rules between the options: what is wrong with which option, if anything is.
    fn check(&self) -> Vec<OptionConflict> {
        Vec::new()
    }
}

/// A requirement of a kind on the rest of an experiment or sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// The last step of the run, from `train.epochs` or `train.steps`: a limit of time does not
    /// tell it.
    LastStep,
    /// The last place in its list, before those that are [`Requirement::AfterLast`].
    LastPlace,
    /// A place after the one that has the last place, and all others.
    AfterLast,
    /// A `key` of its entry.
    EntryKey,
    /// Parameters to search, `sweep.parameters`.
    Parameters,
    /// A limited number of values of each parameter of a sweep.
    Points,
    /// The number of trials, `sweep.trials`.
    Trials,
    /// Trials that are written down, `[[sweep.list]]`.
    List,
}

/// An option that does not go with the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionConflict {
    /// The option.
    pub key: &'static str,
    /// The options that it does not go with.
    pub with: &'static [&'static str],
    /// The reason, a fragment: "needs a momentum".
    pub what: String,
}

/// A kind that was chosen, with all of its options.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Name of the kind.
    pub name: String,
    /// Options of the kind.
    #[serde(default)]
    pub options: Options,
}

impl Choice {
    /// The kind called `name`, with default options.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), options: Options::new() }
    }

    /// The choice of `kind`.
    pub fn of<K: Kind>(kind: &K) -> Self {
        Self { name: kind.name().to_owned(), options: spec::options(kind) }
    }

    /// Gives an option another value; one that JSON cannot hold is left out.
    pub fn set(&mut self, key: &str, value: impl Serialize) {
        if let Ok(value) = serde_json::to_value(value) {
            self.options.insert(key.to_owned(), value);
        }
    }
}

impl std::fmt::Display for Choice {
    /// "sgd, momentum 0.9, nesterov": options that are zero, false or empty are left out.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)?;
        for (key, value) in &self.options {
            match value {
                Value::Bool(true) => write!(f, ", {key}")?,
                Value::Number(number) if number.as_f64() != Some(0.0) => {
                    write!(f, ", {key} {}", shown(value))?;
                }
                Value::String(_) => write!(f, ", {key} {}", shown(value))?,
                Value::Array(items) if !items.is_empty() => write!(f, ", {key} {}", shown(value))?,
                _ => {}
            }
        }
        Ok(())
    }
}

/// A value without the marks of JSON.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(" "),
        Value::Number(number) if number.is_f64() => {
            format!("{:?}", number.as_f64().unwrap_or_default())
        }
        other => other.to_string(),
    }
}
