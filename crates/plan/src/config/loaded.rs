//! An experiment with the memory of where each of its values was written.

use std::collections::BTreeMap;
use std::path::PathBuf;

use figment::value::{Dict, Value};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::config::extract::{merged, strongest};
use crate::config::keys::{dotted, path_of};
use crate::config::layer::{Layer, Source};
use crate::config::problem::Problem;
use crate::config::schema::Experiment;
use crate::config::spans::Path;
use crate::config::vocabulary::Vocabulary;

/// An experiment, and where each of its values was written.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The experiment, complete with defaults.
    pub experiment: Experiment,
    /// For each key that has a value, by dotted name, the strongest layer that gives it; a list is
    /// one key.
    pub sources: BTreeMap<String, Source>,
    /// The experiment file.
    pub path: PathBuf,
    /// The checkpoint that `model.pretrained` is, where it is one of ddprun's own.
    pub pretrained: Option<PretrainedCheckpoint>,
    pub(crate) layers: Vec<Layer>,
}

/// A checkpoint of another run, of which the weights are started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PretrainedCheckpoint {
    /// Step of the checkpoint.
    pub step: u64,
    /// True if its averaged weights are taken.
    pub averaged: bool,
    /// One hash over all of its bytes, hexadecimal.
    pub fingerprint: String,
}

impl Loaded {
    pub(crate) fn new(experiment: Experiment, path: PathBuf, layers: Vec<Layer>) -> Self {
        let mut sources = BTreeMap::new();
        let top: Dict = merged(&layers).extract().unwrap_or_default();
        let mut open: Vec<(Path, Value)> =
            top.into_iter().map(|(key, value)| (vec![key], value)).collect();
        while let Some((path, value)) = open.pop() {
            match value {
                Value::Dict(_, dict) if !dict.is_empty() => {
                    open.extend(
                        dict.into_iter().map(|(key, value)| {
                            (path.iter().cloned().chain([key]).collect(), value)
                        }),
                    );
                }
                _ => {
                    let index = strongest(&layers, &path).unwrap_or(0);
                    sources.insert(dotted(&path), layers[index].source.clone());
                }
            }
        }
        Self { experiment, sources, path, pretrained: None, layers }
    }

    /// Modes that are not given follow from the metrics that are watched.
    pub(crate) fn infer_modes(&mut self, vocabulary: &Vocabulary) {
        let [checkpoint, early] =
            ["checkpoint.mode", "early_stopping.mode"].map(|key| self.is_given(key));
        let experiment = &mut self.experiment;
        let watched = [
            (checkpoint, &experiment.checkpoint.monitor, &mut experiment.checkpoint.mode),
            (early, &experiment.early_stopping.monitor, &mut experiment.early_stopping.mode),
        ];
        for (is_given, metric, mode) in watched {
            if let Some(better) = vocabulary.mode_of(metric).filter(|_| !is_given) {
                *mode = better;
            }
        }
    }

    /// Changes the value of `key`, which is not given, to what fits the target of the data.
    pub fn follow(&mut self, key: &str, change: impl FnOnce(&mut Experiment)) {
        change(&mut self.experiment);
        self.sources.insert(key.to_owned(), Source::Target);
    }

    /// A problem of the key with this dotted name (`data.transforms.train[1].size`), drawn under
    /// its value in the strongest layer that has one; without a picture where none has.
    pub fn problem(&self, key: &str, what: impl Into<String>) -> Problem {
        self.problem_at(key, key, what)
    }

    /// A problem of `key`, drawn under the value of the key `place`, for keys that are missing.
    pub fn problem_at(&self, key: &str, place: &str, what: impl Into<String>) -> Problem {
        let problem = Problem::new(key, what);
        let path = path_of(place);
        let Some(order) = strongest(&self.layers, &path) else { return problem };
        let layer = &self.layers[order];
        match layer.places.get(&path) {
            // The built-in page is not the user's to mend.
            Some(place) if order > 0 => problem.at(&layer.text, place.value.clone(), order),
            _ => problem,
        }
    }

    /// The path of `fallback`, which is given relative to the file.
    pub(crate) fn fallback_path(&self) -> Option<PathBuf> {
        let fallback = self.experiment.fallback.as_ref()?;
        Some(self.path.parent().map_or(fallback.clone(), |folder| folder.join(fallback)))
    }

    /// Changes the option of a component with this dotted key, such as `data.tokenizer` or
    /// `model.lora.adapters`. Tables on the way must be there.
    pub fn set_option(&mut self, key: &str, value: Json) {
        let mut words = key.split('.');
        let Some((_, options)) = words.next().and_then(|table| self.experiment.choice_mut(table))
        else {
            return;
        };
        let Some(place) = words.next().and_then(|name| options.get_mut(name)) else { return };
        if let Some(place) = words.try_fold(place, |table, name| table.get_mut(name)) {
            *place = value;
        }
    }

    /// True if a user's layer, not only the built-in defaults, says something about the key.
    pub fn is_given(&self, key: &str) -> bool {
        strongest(&self.layers, &path_of(key)).is_some_and(|index| index > 0)
    }

    /// True if a user's layer gives a key of this table.
    pub fn gives_any_of(&self, table: &str) -> bool {
        let is_in = |key: &str| key.strip_prefix(table).is_some_and(|rest| rest.starts_with('.'));
        self.sources.iter().any(|(key, source)| is_in(key) && *source != Source::Defaults)
    }

    /// The text at the key, as written; `None` if it is absent or no text.
    pub fn word(&self, key: &str) -> Option<&str> {
        let path = path_of(key);
        match self.layers[strongest(&self.layers, &path)?].get(&path)? {
            Value::String(_, text) => Some(text),
            _ => None,
        }
    }

    /// Name of the experiment: as written, or the file's stem.
    pub fn name(&self) -> &str {
        self.experiment.experiment.name.as_deref().unwrap_or_default()
    }
}
