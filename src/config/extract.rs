//! Layers -> `Experiment`, and every value of the wrong kind on the way.
//!
//! serde stops at the first wrong value. So a wrong value is reported, taken away, and the extraction
//! repeated, until nothing is wrong; what was taken away is remembered, so that the rules between keys do
//! not report its consequences.

use std::collections::{BTreeMap, BTreeSet};

use figment::Figment;
use figment::error::Kind;
use figment::value::{Dict, Value};

use crate::config::check;
use crate::config::keys::{Page, dotted};
use crate::config::kind::{FamilySpec, TABLES};
use crate::config::layer::Layer;
use crate::config::problem::Problem;
use crate::config::schema::Experiment;
use crate::config::vocabulary::Vocabulary;
use crate::config::wording;

/// Most problems that are reported.
const MAX_PROBLEMS: usize = 60;

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
pub(crate) fn extract(layers: &mut [Layer], vocabulary: &Vocabulary) -> Extracted {
    let mut extracted =
        Extracted { experiment: None, problems: Vec::new(), broken: BTreeSet::new() };
    while extracted.problems.len() < MAX_PROBLEMS {
        let mended = match attempt(layers, vocabulary) {
            Ok(experiment) => {
                extracted.experiment = Some(experiment);
                false
            }
            Err(Wrong::Value(error)) => extracted.step(layers, vocabulary, &error),
            Err(Wrong::Kind(family)) => extracted.unknown_kind(layers, family),
        };
        if !mended {
            break;
        }
    }
    extracted
}

/// The first thing that is wrong.
enum Wrong<'a> {
    Value(Box<figment::Error>),
    /// The table of this family names none of its kinds.
    Kind(&'a FamilySpec),
}

impl From<figment::Error> for Wrong<'_> {
    fn from(error: figment::Error) -> Self {
        Box::new(error).into()
    }
}

impl From<Box<figment::Error>> for Wrong<'_> {
    fn from(error: Box<figment::Error>) -> Self {
        Self::Value(error)
    }
}

/// The experiment that the layers ask for, its kinds with all their options.
fn attempt<'a>(layers: &[Layer], vocabulary: &'a Vocabulary) -> Result<Experiment, Wrong<'a>> {
    let mut whole: Dict = merged(layers).extract()?;
    let mut options: BTreeMap<&str, Dict> = TABLES
        .into_iter()
        .filter_map(|table| Some((table, set_aside(&mut whole, table, vocabulary)?)))
        .collect();
    let mut experiment: Experiment = Value::from(whole).deserialize()?;
    for table in TABLES {
        let Some((name, chosen)) = experiment.choice_mut(table) else { continue };
        let given = options.remove(table).unwrap_or_default();
        *chosen = match vocabulary.family(table) {
            None => given.into_iter().map(|(key, value)| (key, json(&value))).collect(),
            Some(family) => {
                let kind = family.kind(name).ok_or(Wrong::Kind(family))?;
                let own: Dict =
                    given.into_iter().filter(|(key, _)| kind.key(key).is_some()).collect();
                kind.read(&own).map_err(|mut error| {
                    error.path.insert(0, table.to_owned());
                    error
                })?
            }
        };
    }
    Ok(experiment)
}

/// Takes the options of kinds out of a table: what the page does not list among the keys that all kinds share.
fn set_aside(whole: &mut Dict, table: &str, vocabulary: &Vocabulary) -> Option<Dict> {
    let Some(Value::Dict(_, keys)) = whole.get_mut(table) else { return None };
    let shared = vocabulary.page().shared(table)?;
    let (own, rest): (Dict, Dict) =
        std::mem::take(keys).into_iter().partition(|(key, _)| !shared.contains(key));
    *keys = rest;
    Some(own.into_iter().filter(|(_, value)| !matches!(value, Value::Empty(..))).collect())
}

fn json(value: &Value) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_default()
}

impl Extracted {
    /// Reports a name that no kind has, and takes it away.
    fn unknown_kind(&mut self, layers: &mut [Layer], family: &FamilySpec) -> bool {
        let path = [family.table.to_owned(), "name".to_owned()];
        let Some(index) = strongest(layers, &path) else { return false };
        let written = layers[index].get(&path).and_then(Value::as_str).unwrap_or_default();
        let (what, help) = wording::not_one_of(written, family.names());
        let problem = layers[index].at_value(&path, what, index);
        self.problems.push(match help {
            Some(help) => problem.help(help),
            None => problem,
        });
        self.broken.insert(dotted(&path));
        mend(&mut layers[index], &path, &Page::new(&[]))
    }

    /// Reports one error and mends its cause; whether it could be mended.
    fn step(
        &mut self,
        layers: &mut [Layer],
        vocabulary: &Vocabulary,
        error: &figment::Error,
    ) -> bool {
        if let Kind::MissingField(field) = &error.kind {
            let mut path = error.path.clone();
            path.push(field.to_string());
            return self.missing(layers, vocabulary, &path);
        }
        let path = &error.path;
        let Some(index) = strongest(layers, path) else {
            self.problems.push(Problem::new(dotted(path), error.kind.to_string()));
            return false;
        };
        let names = allowed_names(layers, vocabulary, (index, error));
        let (what, help) = wording::describe(&error.kind, &names, bounds(vocabulary, path));
        let problem = layers[index].at_value(path, what, index);
        self.problems.push(match help {
            Some(help) => problem.help(help),
            None => problem,
        });
        self.broken.insert(dotted(path));
        mend(&mut layers[index], path, vocabulary.page())
    }

    /// Reports a required key that is missing, and fills in an example.
    fn missing(&mut self, layers: &mut [Layer], vocabulary: &Vocabulary, path: &[String]) -> bool {
        if let Some(done) = self.missing_option(layers, vocabulary, path) {
            return done;
        }
        let Some((last, parent)) = path.split_last() else { return false };
        let index = strongest(layers, parent).unwrap_or(0);
        let name = dotted(path);
        let page = vocabulary.page();
        if self.broken.insert(name.clone()) {
            let example = page.example(path).map(|value| written(&value));
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
        let Some(example) = page.example(path) else { return false };
        match layers[index].table_mut(parent) {
            Some(table) => table.insert(last.clone(), example).is_none(),
            None => false,
        }
    }
}

impl Extracted {
    /// Reports an option that a kind cannot do without, and fills in an example; `None` if `path` is something else.
    fn missing_option(
        &mut self,
        layers: &mut [Layer],
        vocabulary: &Vocabulary,
        path: &[String],
    ) -> Option<bool> {
        let [table, option] = path else { return None };
        let family = vocabulary.family(table)?;
        let at = [table.clone(), "name".to_owned()];
        let index = strongest(layers, &at)?;
        let name = layers[index].get(&at)?.as_str()?.to_owned();
        let key = family.kind(&name)?.key(option)?;
        let what = format!("`{name}` needs `{option}`");
        // The defaults are nothing that a user could look at.
        let problem = match index {
            0 => Problem::new(dotted(path), what),
            _ => layers[index].at_value(&at, what, index).of_key(dotted(path)),
        };
        let example = Value::serialize(&key.example).ok()?;
        self.problems.push(problem.help(format!("such as `{option} = {}`", written(&example))));
        self.broken.insert(dotted(path));
        let table = layers[index].table_mut(std::slice::from_ref(table))?;
        Some(table.insert(option.clone(), example).is_none())
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

/// The least and the most that the whole number at `path` may be.
fn bounds(vocabulary: &Vocabulary, path: &[String]) -> Option<(u64, u64)> {
    let of_option = || {
        let [table, option] = path else { return None };
        let key = vocabulary.family(table)?.kinds.iter().find_map(|kind| kind.key(option))?;
        let most = key.schema["maximum"].as_u64().unwrap_or(u64::MAX);
        key.schema["minimum"].as_u64().map(|least| (least, most))
    };
    check::bounds(&dotted(path)).or_else(of_option)
}

/// Takes the wrong value away; an element of a list is replaced, so that its neighbours keep their numbers.
fn mend(layer: &mut Layer, path: &[String], page: &Page) -> bool {
    let in_list = path.iter().any(|key| key.parse::<usize>().is_ok());
    let required = path.last().is_some_and(|key| key == "name" || key.parse::<usize>().is_ok());
    if in_list && required {
        return match (layer.get_mut(path), page.example(path)) {
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
fn allowed_names(
    layers: &[Layer],
    vocabulary: &Vocabulary,
    (index, error): (usize, &figment::Error),
) -> Vec<&'static str> {
    if let [table, key] = &error.path[..]
        && key == "name"
        && let Some(family) = vocabulary.family(table)
    {
        return family.kinds.iter().map(|kind| kind.name).collect();
    }
    match &error.kind {
        Kind::InvalidType(_, expected) if expected.starts_with("enum ") => {}
        _ => return Vec::new(),
    }
    let mut probe = layers.to_vec();
    if let Some(value) = probe[index].get_mut(&error.path) {
        *value = Value::from("");
    }
    match attempt(&probe, vocabulary) {
        Err(Wrong::Value(error)) => match error.kind {
            Kind::UnknownVariant(_, names) => names.to_vec(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}
