//! Values out of layers, each of the kind that is wanted or a problem with a caret under it.

use figment::value::Value;

use crate::config::extract::strongest;
use crate::config::keys::dotted;
use crate::config::layer::Layer;
use crate::config::problem::Problem;
use crate::config::spans::Path;
use crate::config::suggest::{any_of, closest};
use crate::config::sweep::Json;
use crate::config::vocabulary::Vocabulary;

/// The layers of a file that is no experiment, weakest first, and what is wrong with them.
pub(crate) struct Reader {
    pub(crate) layers: Vec<Layer>,
    pub(crate) problems: Vec<Problem>,
    /// What a program knows.
    pub(crate) vocabulary: Vocabulary,
    /// What the file is: "a sweep".
    pub(crate) noun: &'static str,
}

impl Reader {
    /// The strongest value at `path`.
    pub(crate) fn get(&self, path: &[String]) -> Option<&Value> {
        self.layers[strongest(&self.layers, path)?].get(path)
    }

    /// Takes the value at `path` out of all layers.
    pub(crate) fn remove(&mut self, path: &[String]) {
        for layer in &mut self.layers {
            layer.remove(path);
        }
    }

    /// A problem of the value at `path`, drawn on the strongest layer that knows a place for it.
    pub(crate) fn problem(&self, path: &[String], what: impl Into<String>) -> Problem {
        let at = (1..=path.len()).rev().find_map(|length| {
            let known = |layer: &Layer| layer.places.contains_key(&path[..length]);
            self.layers.iter().rposition(known).map(|order| (order, &path[..length]))
        });
        let problem = Problem::new(shown(path), what);
        let Some((order, place)) = at else { return problem };
        let layer = &self.layers[order];
        let spans = &layer.places[place];
        // A whole table would be underlined from its first line on; its name says it better.
        let is_table = matches!(layer.get(place), Some(Value::Dict(..)) | None);
        let span = if is_table { spans.key.clone() } else { spans.value.clone() };
        problem.at(&layer.text, span, order)
    }

    /// Notes a problem.
    pub(crate) fn wrong(&mut self, path: &[String], what: impl Into<String>) {
        let problem = self.problem(path, what);
        self.problems.push(problem);
    }

    /// Notes a problem with a remedy.
    pub(crate) fn wrong_help(
        &mut self,
        path: &[String],
        what: impl Into<String>,
        help: impl Into<String>,
    ) {
        let problem = self.problem(path, what).help(help);
        self.problems.push(problem);
    }

    /// Text at `path`; a problem if it is something else.
    pub(crate) fn text(&mut self, path: &[String]) -> Option<String> {
        if let Value::String(_, text) = self.get(path)? {
            Some(text.clone())
        } else {
            self.wrong(path, "must be text");
            None
        }
    }

    /// `true` or `false`.
    pub(crate) fn truth(&mut self, path: &[String]) -> Option<bool> {
        if let Value::Bool(_, truth) = self.get(path)? {
            Some(*truth)
        } else {
            self.wrong(path, "must be true or false");
            None
        }
    }

    /// A whole number from `low` to `high`.
    pub(crate) fn whole(&mut self, path: &[String], low: u64, high: u64) -> Option<u64> {
        let number = self.get(path)?.to_i128().and_then(|number| u64::try_from(number).ok());
        if let Some(number) = number.filter(|number| (low..=high).contains(number)) {
            Some(number)
        } else {
            self.wrong(path, format!("must be a whole number from {low} to {high}"));
            None
        }
    }

    /// A finite number.
    pub(crate) fn real(&mut self, path: &[String]) -> Option<f64> {
        let value = self.get(path)?;
        let number = value.to_i128().map(|whole| whole as f64).or_else(|| value.to_f64());
        if let Some(number) = number.filter(|number| number.is_finite()) {
            Some(number)
        } else {
            self.wrong(path, "must be a number");
            None
        }
    }

    /// One of some words.
    pub(crate) fn word<T: Copy>(&mut self, path: &[String], words: &[(&str, T)]) -> Option<T> {
        let text = self.text(path)?;
        if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*meaning);
        }
        let names = || words.iter().map(|(word, _)| *word);
        let help = match closest(&text, names()) {
            Some(word) => format!("did you mean `{word}`?"),
            None => format!("choose {}", any_of(names())),
        };
        self.wrong_help(path, format!("`{text}` is not known here"), help);
        None
    }

    /// Names of the entries of the table at `path`, over all layers, in the order of writing.
    pub(crate) fn keys(&self, path: &[String]) -> Vec<String> {
        let mut found: Vec<((usize, usize), String)> = Vec::new();
        for (order, layer) in self.layers.iter().enumerate() {
            let table = if path.is_empty() {
                Some(&layer.dict)
            } else {
                layer.get(path).and_then(Value::as_dict)
            };
            for key in table.into_iter().flat_map(|table| table.keys()) {
                let place = layer.places.get(&join(path, key)).map_or(0, |place| place.key.start);
                if !found.iter().any(|(_, known)| known == key) {
                    found.push(((order, place), key.clone()));
                }
            }
        }
        found.sort();
        found.into_iter().map(|(_, key)| key).collect()
    }

    /// Reports every entry of the table at `path` that is not one of `known`.
    pub(crate) fn only(&mut self, path: &[String], known: &[&str]) {
        self.only_of(path, &[], known);
    }

    /// As [`Reader::only`], without a word about entries that are `other`.
    pub(crate) fn only_of(&mut self, path: &[String], other: &[&str], known: &[&str]) {
        for key in self.keys(path) {
            if known.contains(&key.as_str()) || other.contains(&key.as_str()) {
                continue;
            }
            let help = match closest(&key, known.iter().copied()) {
                Some(word) => format!("did you mean `{word}`?"),
                None => format!("choose {}", any_of(known.iter().copied())),
            };
            let at = join(path, &key);
            let order = strongest(&self.layers, &at).unwrap_or(0);
            let what = format!("is not a key of {}", self.noun);
            let problem = self.layers[order].at_key(&at, what, order);
            self.problems.push(problem.help(help));
        }
    }
}

/// `path` and one key more.
pub(crate) fn join(path: &[String], key: &str) -> Path {
    path.iter().cloned().chain([key.to_owned()]).collect()
}

/// The value as JSON.
pub(crate) fn json(value: &Value) -> Json {
    serde_json::to_value(value).unwrap_or_default()
}

/// Parameters are called by the key that they change; which of its values is meant, the caret says.
fn shown(path: &[String]) -> String {
    match path {
        [sweep, parameters, key, rest @ ..]
            if sweep == "sweep" && parameters == "parameters" && key.contains('.') =>
        {
            let words =
                rest.iter().filter(|part| *part != "values" && part.parse::<usize>().is_err());
            words.fold(key.clone(), |name, part| format!("{name}: {part}"))
        }
        _ => dotted(path),
    }
}
