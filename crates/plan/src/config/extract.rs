//! Layers -> `Experiment`, and every value of the wrong kind on the way.
//!
//! serde stops at the first wrong value. So a wrong value is reported, taken away, and the
//! extraction repeated, until nothing is wrong; what was taken away is remembered, so that the
//! rules between keys do not report its consequences.

use std::collections::{BTreeMap, BTreeSet};

use figment::Figment;
use figment::error::Kind;
use figment::value::{Dict, Value};

use crate::config::check;
use crate::config::keys::{Page, dotted, path_of};
use crate::config::kind::{Entry, FamilySpec, LISTS, Modality, Spec, TABLES};
use crate::config::layer::Layer;
use crate::config::problem::Problem;
use crate::config::schema::Experiment;
use crate::config::spans::Path;
use crate::config::suggest::any_of;
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
            Err(Wrong::Kind(family, path)) => {
                extracted.unknown_kind(layers, vocabulary, family, &path)
            }
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
    /// What is at this path names none of the kinds of the family.
    Kind(&'a FamilySpec, Path),
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
    let lists = LISTS.map(|list| entries(&whole, list));
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
                let path = || vec![table.to_owned(), "name".to_owned()];
                let kind = family.kind(name).ok_or_else(|| Wrong::Kind(family, path()))?;
                let own: Dict =
                    given.into_iter().filter(|(key, _)| kind.key(key).is_some()).collect();
                kind.read(&own).map_err(|error| at(&[table.to_owned()], *error))?
            }
        };
    }
    for (list, given) in LISTS.into_iter().zip(lists) {
        let Some(family) = vocabulary.lists().iter().find(|family| family.lists.contains(&list))
        else {
            continue;
        };
        for (index, given) in given.iter().enumerate() {
            let mut path = path_of(list);
            path.push(index.to_string());
            let options = entry(family, given, &path)?.options;
            if let Some(entry) = experiment.list_mut(list).and_then(|list| list.get_mut(index)) {
                entry.options = options;
            }
        }
    }
    Ok(experiment)
}

/// The entries of the list with this dotted name; those that are no tables are empty.
fn entries(whole: &Dict, list: &str) -> Vec<Dict> {
    let items = Value::from(whole.clone()).find(list).and_then(Value::into_array);
    let items = items.unwrap_or_default().into_iter();
    items.map(|item| item.into_dict().unwrap_or_default()).collect()
}

/// The entry at `path` with all options of its kind, and those in its lists with all of theirs.
fn entry<'a>(family: &'a FamilySpec, given: &Dict, path: &Path) -> Result<Entry, Wrong<'a>> {
    let mut entry: Entry =
        Value::from(given.clone()).deserialize().map_err(|error| at(path, error))?;
    let inside = |key: &str| path.iter().cloned().chain([key.to_owned()]).collect::<Path>();
    let kind = family.kind(&entry.name).ok_or_else(|| Wrong::Kind(family, inside("name")))?;
    let mut own = own(given.clone(), |key| kind.key(key).is_some());
    for key in kind.keys.iter().filter(|key| key.is_list()) {
        let Some(Value::Array(_, items)) = own.get_mut(&key.name) else { continue };
        for (index, item) in items.iter_mut().enumerate() {
            let Value::Dict(_, given) = item else { continue };
            let mut path = inside(&key.name);
            path.push(index.to_string());
            let complete = self::entry(family, given, &path)?;
            *item = Value::serialize(&complete).map_err(|error| at(&path, error))?;
        }
    }
    entry.options = kind.read(&own).map_err(|error| at(path, *error))?;
    Ok(entry)
}

/// An error inside of what is at `path`.
fn at(path: &[String], mut error: figment::Error) -> figment::Error {
    error.path.splice(0..0, path.iter().cloned());
    error
}

/// The keys of a table that `is_own` says are options, but for those that are off.
fn own(table: Dict, is_own: impl Fn(&str) -> bool) -> Dict {
    let is_off = |value: &Value| matches!(value, Value::Empty(..));
    table.into_iter().filter(|(key, value)| is_own(key) && !is_off(value)).collect()
}

/// Takes the options of kinds out of a table: what the page does not list among the keys that all
/// kinds share.
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
    fn unknown_kind(
        &mut self,
        layers: &mut [Layer],
        vocabulary: &Vocabulary,
        family: &FamilySpec,
        path: &[String],
    ) -> bool {
        let Some(index) = strongest(layers, path) else { return false };
        let written = layers[index].get(path).and_then(Value::as_str).unwrap_or_default();
        let given = samples(layers, vocabulary);
        let fits = |kind: &&Spec| {
            given.is_none_or(|given| kind.takes.is_empty() || kind.takes.contains(&given))
        };
        let names = family.kinds.iter().filter(fits).map(|kind| kind.name);
        let (what, help) = wording::not_a_kind(family.noun, written, names);
        let problem = layers[index].at_value(path, what, index);
        self.problems.push(match help {
            Some(help) => problem.help(help),
            None => problem,
        });
        self.broken.insert(dotted(path));
        if family.lists.is_empty() {
            return layers[index].remove(path);
        }
        // An entry cannot do without a name, nor can its neighbours without it.
        match (layers[index].get_mut(path), family.kinds.first()) {
            (Some(name), Some(kind)) => {
                *name = Value::from(kind.name);
                true
            }
            _ => false,
        }
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
        if let Some(done) = self.table_for_a_word(layers, vocabulary, error) {
            return done;
        }
        let path = &error.path;
        let Some(index) = strongest(layers, path) else {
            self.problems.push(Problem::new(dotted(path), error.kind.to_string()));
            return false;
        };
        let names = allowed_names(layers, vocabulary, index, error);
        let (what, help) = wording::describe(&error.kind, &names, bounds(vocabulary, path));
        let problem = layers[index].at_value(path, what, index);
        self.problems.push(match help {
            Some(help) => problem.help(help),
            None => problem,
        });
        self.broken.insert(dotted(path));
        mend(&mut layers[index], path, vocabulary.page())
    }

    /// Reports a table where one of some words belongs, of which serde takes the first key for the
    /// word; `None` if `error` is something else.
    fn table_for_a_word(
        &mut self,
        layers: &mut [Layer],
        vocabulary: &Vocabulary,
        error: &figment::Error,
    ) -> Option<bool> {
        let Kind::UnknownVariant(written, names) = &error.kind else { return None };
        let (key, path) = error.path.split_last()?;
        let index = strongest(layers, path)?;
        let is_table = layers[index].get(path).is_some_and(|value| value.as_dict().is_some());
        if key != written || !is_table || family(vocabulary, path).is_some() {
            return None;
        }
        let what = format!("must be {}, not a table", any_of(names.iter().copied()));
        self.problems.push(layers[index].at_value(path, what, index));
        self.broken.insert(dotted(path));
        Some(mend(&mut layers[index], path, vocabulary.page()))
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
            let help = example.map(|example| format!("add it, such as `{last} = {example}`"));
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
    /// Reports an option that a kind cannot do without, and fills in an example; `None` if `path`
    /// is something else.
    fn missing_option(
        &mut self,
        layers: &mut [Layer],
        vocabulary: &Vocabulary,
        path: &[String],
    ) -> Option<bool> {
        let (option, table) = path.split_last()?;
        let family = family(vocabulary, table)?;
        let at: Path = table.iter().cloned().chain(["name".to_owned()]).collect();
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
        let problem = problem.help(format!("add it, such as `{option} = {}`", written(&example)));
        // What stands in for a wrong name or a wrong value asks for nothing.
        let is_consequence = self.broken.contains(&dotted(&at));
        if self.broken.insert(dotted(path)) && !is_consequence {
            self.problems.push(problem);
        }
        let table = layers[index].table_mut(table)?;
        Some(table.insert(option.clone(), example).is_none())
    }
}

/// What the samples of the chosen data set are, if it is known.
fn samples(layers: &[Layer], vocabulary: &Vocabulary) -> Option<Modality> {
    let name = ["data".to_owned(), "name".to_owned()];
    let written = layers[strongest(layers, &name)?].get(&name)?.as_str()?;
    vocabulary.family("data")?.kind(written)?.modality()
}

/// The family of which the table at `path`, or the entry of a list, chooses a kind.
fn family<'a>(vocabulary: &'a Vocabulary, path: &[String]) -> Option<&'a FamilySpec> {
    match path {
        [table] => vocabulary.family(table),
        _ => vocabulary.entry(path).filter(|&(_, length)| length == path.len()).map(|(f, _)| f),
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
        let (option, table) = path.split_last()?;
        let key = family(vocabulary, table)?.kinds.iter().find_map(|kind| kind.key(option))?;
        let most = key.schema["maximum"].as_u64().unwrap_or(u64::MAX);
        key.schema["minimum"].as_u64().map(|least| (least, most))
    };
    check::bounds(&dotted(path)).or_else(of_option)
}

/// Takes the wrong value away; an element of a list is replaced, so that its neighbours keep their
/// numbers.
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

/// The words that the key of `error` takes, if it takes words only: found by asking with a word
/// that it cannot take.
fn allowed_names(
    layers: &[Layer],
    vocabulary: &Vocabulary,
    index: usize,
    error: &figment::Error,
) -> Vec<&'static str> {
    if let Some((key, table)) = error.path.split_last()
        && key == "name"
        && let Some(family) = family(vocabulary, table)
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
