//! Layers -> `Experiment`, and every value of the wrong kind on the way.
//!
//! serde stops at the first wrong value. So a wrong value is reported, taken away, and the extraction
//! repeated, until nothing is wrong; what was taken away is remembered, so that the rules between keys do
//! not report its consequences.

use std::collections::BTreeSet;

use figment::Figment;
use figment::error::Kind;
use figment::value::Value;

use crate::config::check;
use crate::config::keys::{self, dotted};
use crate::config::layer::Layer;
use crate::config::problem::Problem;
use crate::config::schema::Experiment;
use crate::config::spans::Path;
use crate::config::wording;

/// Reports end here; nobody reads more.
const MOST: usize = 60;

/// What could be read, and what was wrong.
pub(crate) struct Extracted {
    /// With every wrong value replaced by a right one; `None` if too much was wrong.
    pub(crate) experiment: Option<Experiment>,
    pub(crate) problems: Vec<Problem>,
    /// Keys that were reported.
    pub(crate) broken: BTreeSet<String>,
}

/// All layers merged, weakest first: tables key by key, everything else replaced.
pub(crate) fn merged(layers: &[Layer]) -> Figment {
    layers.iter().fold(Figment::new(), |figment, layer| figment.merge(layer.clone()))
}

/// The strongest layer that says something about `path`.
pub(crate) fn strongest(layers: &[Layer], path: &[String]) -> Option<usize> {
    layers.iter().rposition(|layer| layer.get(path).is_some())
}

/// Reads the experiment out of the layers, weakest first; wrong values are taken out of them.
pub(crate) fn extract(layers: &mut [Layer]) -> Extracted {
    let mut extracted =
        Extracted { experiment: None, problems: Vec::new(), broken: BTreeSet::new() };
    while extracted.problems.len() < MOST {
        match merged(layers).extract::<Experiment>() {
            Ok(experiment) => {
                extracted.experiment = Some(experiment);
                break;
            }
            Err(error) => {
                if !extracted.step(layers, &error) {
                    break;
                }
            }
        }
    }
    extracted
}

impl Extracted {
    /// Reports one error and mends its cause; whether it could be mended.
    fn step(&mut self, layers: &mut [Layer], error: &figment::Error) -> bool {
        if let Kind::MissingField(field) = &error.kind {
            let mut path = error.path.clone();
            path.push(field.to_string());
            return self.missing(layers, &path);
        }
        let path = &error.path;
        let Some(index) = strongest(layers, path) else {
            self.problems.push(Problem::new(dotted(path), error.kind.to_string()));
            return false;
        };
        let names = allowed_names(layers, index, error);
        let (what, help) = wording::describe(&error.kind, &names, check::bounds(&dotted(path)));
        let problem = layers[index].at_value(path, what, index);
        self.problems.push(match help {
            Some(help) => problem.help(help),
            None => problem,
        });
        self.broken.insert(dotted(path));
        mend(&mut layers[index], path)
    }

    /// Reports a required key that nobody gave, and fills in an example.
    fn missing(&mut self, layers: &mut [Layer], path: &[String]) -> bool {
        let Some((last, parent)) = path.split_last() else { return false };
        let index = strongest(layers, parent).unwrap_or(0);
        let name = dotted(path);
        if self.broken.insert(name.clone()) {
            let example = keys::example(path).map(|value| written(&value));
            let what = "is missing; there is no default";
            let problem = match layers[index].places.get(parent) {
                Some(place) if index > 0 => {
                    let span = place.key.start..place.key.end.max(place.key.start + 1);
                    let span =
                        span.start..span.end.min(span.start + first_line(&layers[index], &span));
                    Problem::new(name, what).at(&layers[index].text, span, index)
                }
                _ => Problem::new(name, what),
            };
            let help = example.map(|example| format!("such as `{last} = {example}`"));
            self.problems.push(match help {
                Some(help) => problem.help(help),
                None => problem,
            });
        }
        let Some(example) = keys::example(path) else { return false };
        match layers[index].table_mut(parent) {
            Some(table) => table.insert(last.clone(), example).is_none(),
            None => false,
        }
    }
}

/// Bytes of the first line of `span`.
fn first_line(layer: &Layer, span: &std::ops::Range<usize>) -> usize {
    let text = layer.text.inner().get(span.clone()).unwrap_or_default();
    text.find('\n').unwrap_or(text.len()).max(1)
}

fn written(value: &Value) -> String {
    match value {
        Value::String(_, text) => format!("\"{text}\""),
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

/// Takes the wrong value away; an element of a list is replaced, so that its neighbours keep their numbers.
fn mend(layer: &mut Layer, path: &Path) -> bool {
    let in_list = path.iter().any(|key| key.parse::<usize>().is_ok());
    let required = path.last().is_some_and(|key| key == "name" || key.parse::<usize>().is_ok());
    if in_list && required {
        return match (layer.get_mut(path), keys::example(path)) {
            (Some(value), Some(example)) => {
                *value = example;
                true
            }
            _ => layer.remove(&path[..path.len() - 1]),
        };
    }
    layer.remove(path)
}

/// The words that the key of `error` takes, if it takes words only: found by asking with a word that it cannot take.
fn allowed_names(layers: &[Layer], index: usize, error: &figment::Error) -> Vec<&'static str> {
    match &error.kind {
        Kind::InvalidType(_, expected) if expected.starts_with("enum ") => {}
        _ => return Vec::new(),
    }
    let mut probe = layers.to_vec();
    if let Some(value) = probe[index].get_mut(&error.path) {
        *value = Value::from("");
    }
    match merged(&probe).extract::<Experiment>().map_err(|error| error.kind) {
        Err(Kind::UnknownVariant(_, names)) => names.to_vec(),
        _ => Vec::new(),
    }
}
