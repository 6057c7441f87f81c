//! Layers -> `Experiment`, and every value of the wrong kind on the way.
//!
//! A wrong value is reported where it was written, and taken away; that it was is remembered, so
//! that the rules between keys do not report its consequences.

use std::collections::BTreeSet;

use figment::Figment;
use figment::value::{Dict, Value};

use crate::config::faults::{Fault, faults};
use crate::config::keys::{Page, dotted, join, json, path_of, stand_in};
use crate::config::kind::{BACKEND, Entry, FamilySpec, LISTS, Modality, Options, Spec, TABLES};
use crate::config::layer::Layer;
use crate::config::problem::Problem;
use crate::config::schema::{AUTO_BACKEND, DECLARED, Experiment};
use crate::config::suggest::any_of;
use crate::config::table::{bounds, words_of};
use crate::config::vocabulary::Vocabulary;
use crate::config::wording;

/// The experiment, as far as it could be read, and the problems.
#[derive(Default)]
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
    let mut extraction = Extraction { layers, vocabulary, extracted: Extracted::default() };
    extraction.tables();
    for family in vocabulary.families().iter().filter(|family| TABLES.contains(&family.table)) {
        extraction.choice(family);
    }
    for family in vocabulary.lists() {
        for list in family.lists {
            extraction.list(family, &path_of(list));
        }
    }
    let experiment = extraction.experiment();
    Extracted { experiment, ..extraction.extracted }
}

/// Layers from which an experiment is read.
struct Extraction<'a> {
    layers: &'a mut [Layer],
    vocabulary: &'a Vocabulary,
    extracted: Extracted,
}

/// Removes the options of the kind from `table` and returns them.
fn apart(table: &mut Dict, shared: &BTreeSet<String>) -> Dict {
    let (own, rest) = std::mem::take(table).into_iter().partition(|(key, _)| !shared.contains(key));
    *table = rest;
    own
}

impl Extraction<'_> {
    /// The merged layers without the options of kinds, and these options by table.
    fn whole(&self) -> (Dict, Vec<(&'static str, Dict)>) {
        let mut whole: Dict = merged(self.layers).extract().unwrap_or_default();
        let options = TABLES.into_iter().filter_map(|table| {
            let Some(Value::Dict(_, keys)) = whole.get_mut(table) else { return None };
            Some((table, apart(keys, self.vocabulary.page().shared(table)?)))
        });
        let options = options.collect();
        (whole, options)
    }

    /// The table at `path`, of the strongest layer that has one.
    fn table(&self, path: &[String]) -> Option<Dict> {
        self.layers[strongest(self.layers, path)?].get(path)?.clone().into_dict()
    }

    /// The keys that are no options of kinds.
    fn tables(&mut self) {
        let (whole, _) = self.whole();
        let read = |given: &Dict| {
            Value::from(given.clone()).deserialize::<Experiment>().err().map(Box::new)
        };
        self.report(&[], faults(&DECLARED, &read, &whole));
    }

    /// The kind that a table chooses, and its options.
    fn choice(&mut self, family: &FamilySpec) {
        let path = path_of(family.table);
        let (whole, options) = self.whole();
        let name = Value::from(whole).find(&format!("{}.name", family.table));
        let Some(kind) = self.kind(family, &path, name.as_ref().and_then(Value::as_str)) else {
            return;
        };
        let given = options.into_iter().find(|(table, _)| *table == family.table);
        self.options(kind, &path, given.map(|(_, given)| given).unwrap_or_default());
    }

    /// The entries of the list at `path`.
    fn list(&mut self, family: &FamilySpec, path: &[String]) {
        let list = strongest(self.layers, path).and_then(|index| self.layers[index].get(path));
        let n = list.and_then(Value::as_array).map_or(0, <[Value]>::len);
        for index in 0..n {
            let path = join(path, &index.to_string());
            let Some(given) = self.table(&path) else { continue };
            let name = given.get("name").and_then(Value::as_str);
            let Some(kind) = self.kind(family, &path, name) else { continue };
            self.options(kind, &path, given);
            for key in kind.keys.iter().filter(|key| key.is_list()) {
                self.list(family, &join(&path, &key.name));
            }
        }
    }

    /// The kind called `name`, which the table or entry at `path` chooses; another one if there is
    /// none of this name, which is reported.
    fn kind<'f>(
        &mut self,
        family: &'f FamilySpec,
        path: &[String],
        name: Option<&str>,
    ) -> Option<&'f Spec> {
        let name = name?;
        if let Some(kind) = family.kind(name) {
            return Some(kind);
        }
        let at = join(path, "name");
        let index = strongest(self.layers, &at)?;
        let given = samples(self.layers, self.vocabulary);
        let fits = |kind: &&Spec| {
            let takes = |given| kind.takes.is_empty() || kind.takes.contains(&given);
            given.is_none_or(|given| given == Modality::Arrays || takes(given))
        };
        let names = family.kinds.iter().filter(fits).map(|kind| kind.name);
        let (what, help) = wording::not_a_kind(family, name, names);
        self.problem(self.layers[index].at_value(&at, what, index), help);
        self.extracted.broken.insert(dotted(&at));
        let usual = match self.vocabulary.page().example(&at) {
            Some(Value::String(_, name)) if family.lists.is_empty() => family.kind(&name),
            _ => family.kinds.first(),
        }?;
        // An entry cannot do without a name, nor can its neighbours without it.
        *self.layers[index].get_mut(&at)? = Value::from(usual.name);
        Some(usual)
    }

    /// The options of `kind` among what is given at `path`.
    fn options(&mut self, kind: &Spec, path: &[String], given: Dict) {
        let own = own(given, kind);
        let read = |given: &Dict| kind.read(given).err();
        let faults = faults(&kind.schema, &read, &own);
        for fault in faults {
            match fault.kind {
                None if fault.path.len() == 1 => self.missing_option(kind, path, &fault),
                _ => self.report(path, vec![fault]),
            }
        }
    }

    /// The words that the key at `path` takes, if it takes words only.
    fn names<'a>(&'a self, path: &[String], schema: Option<&'a serde_json::Value>) -> Vec<&'a str> {
        match path.split_last() {
            Some((key, table)) if key == "name" => {
                family(self.vocabulary, table).into_iter().flat_map(FamilySpec::names).collect()
            }
            _ if dotted(path) == BACKEND => match self.vocabulary.family(BACKEND) {
                Some(family) => std::iter::once(AUTO_BACKEND).chain(family.names()).collect(),
                None => Vec::new(),
            },
            _ => schema.map(words_of).unwrap_or_default(),
        }
    }

    fn problem(&mut self, problem: Problem, help: Option<String>) {
        self.extracted.problems.push(problem.maybe_help(help));
    }

    /// Reports what is wrong inside of the table at `table`, and makes it right.
    fn report(&mut self, table: &[String], faults: Vec<Fault<'_>>) {
        for fault in faults {
            let path = [table, &fault.path].concat();
            let Some(kind) = &fault.kind else {
                self.missing(&path, &fault);
                continue;
            };
            let Some(index) = strongest(self.layers, &path) else {
                self.problem(Problem::new(dotted(&path), kind.to_string()), None);
                continue;
            };
            let names = self.names(&path, fault.schema);
            let is_table = self.layers[index].get(&path).is_some_and(|it| it.as_dict().is_some());
            let (what, help) = match &names[..] {
                [_, ..] if is_table => {
                    (format!("must be {}, not a table", any_of(names.iter().copied())), None)
                }
                names => wording::describe(kind, names, fault.schema.and_then(bounds)),
            };
            self.problem(self.layers[index].at_value(&path, what, index), help);
            self.extracted.broken.insert(dotted(&path));
            mend(self.layers, index, &path, self.vocabulary.page());
        }
    }

    /// Reports a key that has to be given and is not, and fills in an example.
    fn missing(&mut self, path: &[String], fault: &Fault<'_>) {
        let Some((last, parent)) = path.split_last() else { return };
        let index = strongest(self.layers, parent).unwrap_or(0);
        let (layer, name) = (&self.layers[index], dotted(path));
        let example = self.vocabulary.page().example(path);
        let example = example.or_else(|| fault.schema.map(stand_in));
        if self.extracted.broken.insert(name.clone()) {
            let what = "is missing; there is no default";
            let problem = match layer.places.get(parent) {
                Some(place) if index > 0 => {
                    let end = place.key.end.max(place.key.start + 1);
                    let line = first_line(layer, &(place.key.start..end));
                    let span = place.key.start..end.min(place.key.start + line);
                    Problem::new(name, what).at(&layer.text, span, index)
                }
                _ => Problem::new(name, what),
            };
            let help =
                example.as_ref().map(|it| format!("add it, such as `{last} = {}`", written(it)));
            self.problem(problem, help);
        }
        if let (Some(table), Some(example)) = (self.layers[index].table_mut(parent), example) {
            table.insert(last.clone(), example);
        }
    }

    /// Reports an option that a kind cannot do without, and fills in an example.
    fn missing_option(&mut self, kind: &Spec, table: &[String], fault: &Fault<'_>) {
        let Some(key) = fault.path.first().and_then(|name| kind.key(name)) else { return };
        let (at, path) = (join(table, "name"), [table, &fault.path].concat());
        let index = strongest(self.layers, &at).unwrap_or(0);
        let what = format!("`{}` needs `{}`", kind.name, key.name);
        // The defaults are nothing that a user could look at.
        let problem = match index {
            0 => Problem::new(dotted(&path), what),
            _ => self.layers[index].at_value(&at, what, index).of_key(dotted(&path)),
        };
        let example = Value::serialize(&key.example).unwrap_or_else(|_| Value::from(""));
        let help = format!("add it, such as `{} = {}`", key.name, written(&example));
        // What stands in for a wrong name or a wrong value asks for nothing.
        let is_consequence = self.extracted.broken.contains(&dotted(&at));
        if self.extracted.broken.insert(dotted(&path)) && !is_consequence {
            self.problem(problem, Some(help));
        }
        if let Some(table) = self.layers[index].table_mut(table) {
            table.insert(key.name.clone(), example);
        }
    }

    /// The experiment that the layers ask for, its kinds with all their options.
    fn experiment(&self) -> Option<Experiment> {
        let (whole, options) = self.whole();
        let mut experiment: Experiment = Value::from(whole).deserialize().ok()?;
        for (table, given) in options {
            let (name, chosen) = experiment.choice_mut(table)?;
            *chosen = match self.vocabulary.family(table) {
                None => given.into_iter().map(|(key, value)| (key, json(&value))).collect(),
                Some(family) => {
                    let kind = family.kind(name)?;
                    kind.read(&own(given, kind)).ok()?
                }
            };
        }
        for list in LISTS {
            let mut families = self.vocabulary.lists().iter();
            let Some(family) = families.find(|family| family.lists.contains(&list)) else {
                continue;
            };
            for entry in experiment.list_mut(list)? {
                *entry = complete(family, entry)?;
            }
        }
        Some(experiment)
    }
}

/// The entry with all options of its kind, and those in its lists with all of theirs.
fn complete(family: &FamilySpec, entry: &Entry) -> Option<Entry> {
    let kind = family.kind(&entry.name)?;
    let mut given = Dict::new();
    for (name, value) in &entry.options {
        let Some(key) = kind.key(name) else { continue };
        let mut value = value.clone();
        if key.is_list() {
            let inner: Vec<Entry> = serde_json::from_value(value).ok()?;
            let inner = inner.iter().map(|entry| complete(family, entry));
            value = serde_json::to_value(inner.collect::<Option<Vec<_>>>()?).ok()?;
        }
        given.insert(name.clone(), Value::serialize(&value).ok()?);
    }
    let options: Options = kind.read(&given).ok()?;
    Some(Entry { options, ..entry.clone() })
}

/// The options of `kind` in a table, but for those that are off.
fn own(table: Dict, kind: &Spec) -> Dict {
    let is_off = |value: &Value| matches!(value, Value::Empty(..));
    table.into_iter().filter(|(key, value)| kind.key(key).is_some() && !is_off(value)).collect()
}

/// The family of which the table at `path`, or the entry of a list, chooses a kind.
fn family<'a>(vocabulary: &'a Vocabulary, path: &[String]) -> Option<&'a FamilySpec> {
    match path {
        [table] => vocabulary.family(table),
        _ => vocabulary.entry(path).filter(|&(_, length)| length == path.len()).map(|(f, _)| f),
    }
}

/// Type of the samples of the chosen data set, if it is known.
fn samples(layers: &[Layer], vocabulary: &Vocabulary) -> Option<Modality> {
    let name = ["data".to_owned(), "name".to_owned()];
    let written = layers[strongest(layers, &name)?].get(&name)?.as_str()?;
    vocabulary.family("data")?.kind(written)?.modality()
}

/// Bytes of the first line of `span`.
fn first_line(layer: &Layer, span: &std::ops::Range<usize>) -> usize {
    let text = layer.text.text.get(span.clone()).unwrap_or_default();
    text.find('\n').unwrap_or(text.len()).max(1)
}

fn written(value: &Value) -> String {
    match value {
        Value::String(_, text) => format!("\"{text}\""),
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

/// Takes the wrong value away; an element of a list is replaced, so that its neighbours keep their
/// numbers, and so is a name without which nothing else can be said.
fn mend(layers: &mut [Layer], index: usize, path: &[String], page: &Page) {
    let in_list = path.iter().any(|key| key.parse::<usize>().is_ok());
    let required = path.last().is_some_and(|key| key == "name" || key.parse::<usize>().is_ok());
    if required
        && let (Some(value), Some(example)) = (layers[index].get_mut(path), page.example(path))
    {
        *value = example;
        return;
    }
    let path = if required && in_list { &path[..path.len() - 1] } else { path };
    // Weaker layers were not asked; the defaults are right.
    for layer in &mut layers[1..] {
        layer.remove(path);
    }
}
