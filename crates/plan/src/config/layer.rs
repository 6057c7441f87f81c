//! One source of settings: its values for figment, and its text for the caret.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider};
use serde::Serialize;

use crate::config::keys::{dotted, join};
use crate::config::problem::{COMMAND_LINE, NamedText, Problem};
use crate::config::schema::Experiment;
use crate::config::spans::{self, KeySpan, Path};
use crate::config::table;

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The built-in defaults.
    Defaults,
    /// The experiment file, or one that it extends.
    File(PathBuf),
    /// A variable: `DDPRUN_TRAIN__EPOCHS`.
    Environment(String),
    /// An override: `train.epochs=3`.
    CommandLine(String),
    /// The name of the experiment file.
    FileName,
    /// The type of the target: classes or numbers.
    Target,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Defaults => f.write_str("built-in defaults"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::CommandLine(_) => f.write_str(COMMAND_LINE),
            Self::FileName => f.write_str("the file's name"),
            Self::Target => f.write_str("the data's target"),
        }
    }
}

/// One file, one environment variable or one override.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) source: Source,
    pub(crate) dict: Dict,
    pub(crate) places: BTreeMap<Path, KeySpan>,
    pub(crate) text: Arc<NamedText>,
}

impl Layer {
    /// The built-in defaults.
    pub(crate) fn defaults() -> Self {
        let text = NamedText::named(Source::Defaults.to_string(), "");
        let (dict, places) = (table::defaults::<Experiment>(), BTreeMap::new());
        Self { source: Source::Defaults, dict, places, text }
    }

    /// A whole TOML text, and what of it is not TOML.
    pub(crate) fn document(source: Source, text: String) -> (Self, Vec<Problem>) {
        let read = spans::document(&text);
        let text = NamedText::named(source.to_string(), text);
        let layer = Self { source, dict: read.dict, places: read.places, text };
        let problems = layer.unreadable(read.errors);
        (layer, problems)
    }

    /// Problems of a text that is not TOML; at most ten, since one slip has many consequences.
    pub(crate) fn unreadable(&self, errors: Vec<(String, std::ops::Range<usize>)>) -> Vec<Problem> {
        let problem = |(what, span): (String, std::ops::Range<usize>)| {
            let byte = |at: usize| self.text.text.as_bytes().get(at).copied().unwrap_or(b' ');
            let is_behind = byte(span.start) == b',' && what.contains("expected newline");
            let around = [byte(span.start.wrapping_sub(1)), byte(span.start + 1)];
            let help = if around.iter().all(u8::is_ascii_digit) {
                "write a decimal point: `0.05`, not `0,05`"
            } else {
                "remove the comma"
            };
            let rest = self.text.text.get(span.start..).unwrap_or_default();
            let is_null = ["null", "None", "nil"].iter().any(|word| rest.starts_with(word));
            let problem = Problem::new("", what).at(&self.text, span, 0);
            if is_null {
                let help = "leave the key out, or among the values of a sweep write `\"null\"`: TOML \
                            has no null";
                problem.help(help)
            } else if is_behind {
                problem.help(help)
            } else {
                problem
            }
        };
        errors.into_iter().take(10).map(problem).collect()
    }

    /// The value at `path`.
    pub(crate) fn get(&self, path: &[String]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.dict.get(first)?, |value, key| match value {
            Value::Dict(_, dict) => dict.get(key),
            Value::Array(_, items) => items.get(key.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// The value at `path`, to change it.
    pub(crate) fn get_mut(&mut self, path: &[String]) -> Option<&mut Value> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.dict.get_mut(first)?, |value, key| match value {
            Value::Dict(_, dict) => dict.get_mut(key),
            Value::Array(_, items) => items.get_mut(key.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// The table at `path`, the top for an empty one.
    pub(crate) fn table_mut(&mut self, path: &[String]) -> Option<&mut Dict> {
        if path.is_empty() {
            return Some(&mut self.dict);
        }
        match self.get_mut(path)? {
            Value::Dict(_, dict) => Some(dict),
            _ => None,
        }
    }

    /// Takes the key at `path` away; whether it was there.
    pub(crate) fn remove(&mut self, path: &[String]) -> bool {
        let Some((last, parent)) = path.split_last() else { return false };
        self.table_mut(parent).is_some_and(|table| table.remove(last).is_some())
    }

    /// Gives the key at `path` the name that was meant.
    pub(crate) fn rename(&mut self, path: &[String], name: &str) {
        let Some((last, parent)) = path.split_last() else { return };
        let Some(table) = self.table_mut(parent) else { return };
        let Some(value) = table.remove(last) else { return };
        table.insert(name.to_owned(), value);
        let depth = parent.len();
        let moved: Vec<(Path, KeySpan)> = self
            .places
            .iter()
            .filter(|(old, _)| old.starts_with(path))
            .map(|(old, place)| {
                let mut new = old.clone();
                name.clone_into(&mut new[depth]);
                (new, place.clone())
            })
            .collect();
        self.places.extend(moved);
    }

    /// Puts the keys of the table `inner` of `table` into `table` itself, where it lacks them.
    pub(crate) fn lift(&mut self, table: &str, inner: &str) {
        let path = [table.to_owned(), inner.to_owned()];
        let Some(Value::Dict(_, keys)) = self.get(&path).cloned() else { return };
        self.remove(&path);
        for (key, value) in keys {
            if let Some(table) = self.table_mut(&path[..1]) {
                table.entry(key).or_insert(value);
            }
        }
        let inside = self.places.iter().filter(|(old, _)| old.len() > 2 && old.starts_with(&path));
        let moved =
            |(old, place): (&Path, &KeySpan)| ([&old[..1], &old[2..]].concat(), place.clone());
        let moved: Vec<(Path, KeySpan)> = inside.map(moved).collect();
        self.places.extend(moved);
    }

    /// Makes tables of those entries of the list at `path` that are names alone.
    pub(crate) fn name_entries(&mut self, path: &[String]) {
        let Some(Value::Array(_, entries)) = self.get_mut(path) else { return };
        let mut named = Vec::new();
        for (index, entry) in entries.iter_mut().enumerate() {
            if let Value::String(..) = entry {
                *entry = Dict::from([("name".to_owned(), entry.clone())]).into();
                named.push(join(path, &index.to_string()));
            }
        }
        for entry in named {
            if let Some(place) = self.places.get(&entry).cloned() {
                self.places.insert(join(&entry, "name"), place);
            }
        }
    }

    /// A problem of the key at `path`, with the caret under its value.
    pub(crate) fn at_value(&self, path: &[String], what: String, order: usize) -> Problem {
        let problem = Problem::new(dotted(path), what);
        match self.places.get(path) {
            Some(place) => problem.at(&self.text, place.value.clone(), order),
            None => problem,
        }
    }

    /// A problem of the key at `path`, with the caret under the key itself.
    pub(crate) fn at_key(&self, path: &[String], what: String, order: usize) -> Problem {
        let problem = Problem::new(dotted(path), what);
        match self.places.get(path) {
            Some(place) => problem.at(&self.text, place.key.clone(), order),
            None => problem,
        }
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.source.to_string())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.dict.clone())]))
    }
}
