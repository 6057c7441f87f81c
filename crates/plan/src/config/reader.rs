//! Reads typed values out of layers, or reports them with a caret.

use figment::value::{Dict, Value};
use serde::de::DeserializeOwned;

use crate::config::check::{Finding, range};
use crate::config::extract::strongest;
use crate::config::faults::{ReadTable, faults};
use crate::config::keys::{dotted, join, json, path_of};
use crate::config::kind::{Choice, FamilySpec, Options, Spec, example};
use crate::config::layer::Layer;
use crate::config::problem::Problem;
use crate::config::suggest::{any_of, remedy};
use crate::config::sweep::Json;
use crate::config::table::{bounds, words_of};
use crate::config::vocabulary::Vocabulary;
use crate::config::wording;

/// The layers of a file that is no experiment, weakest first, and what is wrong with them.
pub(crate) struct Reader {
    pub(crate) layers: Vec<Layer>,
    pub(crate) problems: Vec<Problem>,
    /// Components that the program knows.
    pub(crate) vocabulary: Vocabulary,
    /// Noun for the file: "a sweep".
    pub(crate) noun: &'static str,
}

impl Reader {
    /// A reader of one file, which messages call `noun`.
    pub(crate) fn new(file: Layer, vocabulary: &Vocabulary, noun: &'static str) -> Self {
        let vocabulary = vocabulary.clone();
        Self { layers: vec![file], problems: Vec::new(), vocabulary, noun }
    }

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

    /// The value of the word at `path`, which must be one of `words`.
    pub(crate) fn word<T: Copy>(&mut self, path: &[String], words: &[(&str, T)]) -> Option<T> {
        let text = self.text(path)?;
        if let Some((_, meaning)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*meaning);
        }
        let help = remedy(&text, words.iter().map(|(word, _)| *word));
        self.wrong_help(path, format!("`{text}` is not known here"), help);
        None
    }

    /// The table that `own`, found at `table`, is: its wrong values are reported and left out.
    pub(crate) fn read<T: Default + DeserializeOwned>(
        &mut self,
        schema: &Json,
        table: &[String],
        own: Dict,
    ) -> T {
        let typed = |own: &Dict| Value::from(own.clone()).deserialize::<T>().map_err(Box::new);
        let own = self.right(schema, &|own| typed(own).err(), table, own);
        typed(&own).unwrap_or_default()
    }

    /// Keeps the valid values of `own`, the table at path `table`, and reports the others.
    fn right(
        &mut self,
        schema: &Json,
        read: ReadTable<'_>,
        table: &[String],
        mut own: Dict,
    ) -> Dict {
        for fault in faults(schema, read, &own) {
            let path = [table, &fault.path].concat();
            let Some(kind) = &fault.kind else {
                self.missing(&path, fault.schema);
                continue;
            };
            let names = fault.schema.map(words_of).unwrap_or_default();
            let (what, help) = wording::describe(kind, &names, fault.schema.and_then(bounds));
            self.wrong_with(&path, what, help);
            take_away(&mut own, &fault.path);
        }
        let mut found = Vec::new();
        range("", &Value::from(own.clone()), schema, &mut found);
        for Finding { key, what, help, .. } in found {
            let path = path_of(&key);
            take_away(&mut own, &path);
            self.wrong_with(&[table, &path].concat(), what, help);
        }
        own
    }

    /// Notes that a key which has to be given is not.
    fn missing(&mut self, path: &[String], schema: Option<&Json>) {
        let (Some(schema), Some(key)) = (schema, path.last()) else { return };
        let help = format!("add it, such as `{key} = {}`", example(schema, None));
        self.wrong_help(path, "is missing; there is no default", help);
    }

    /// The kind that the word at `name` chooses, with its options from `table`; `usual` if there is
    /// no word.
    pub(crate) fn choice(
        &mut self,
        family: &str,
        name: &[String],
        usual: &str,
        table: &[String],
    ) -> Choice {
        let given = self.given(name, table);
        let word = self.get(name).cloned();
        let Some(family) = self.vocabulary.family(family).cloned() else {
            let name = word.as_ref().and_then(Value::as_str).unwrap_or(usual).to_owned();
            let options = given.iter().map(|(key, value)| (key.clone(), json(value))).collect();
            return Choice { name, options };
        };
        let kind = match &word {
            None => family.kind(usual),
            Some(Value::String(_, word)) => {
                let kind = family.kind(word);
                if kind.is_none() {
                    let names = family.names();
                    let (what, help) = wording::not_a_kind(&family, word, names);
                    self.wrong_with(name, what, help);
                }
                kind
            }
            Some(_) => {
                self.wrong(name, format!("must be {}", any_of(family.names())));
                None
            }
        };
        // Without a known name it cannot be said which options are right.
        let Some(kind) = kind else { return Choice::named(usual) };
        Choice {
            name: kind.name.to_owned(),
            options: self.options(&family, kind, (name, table), given),
        }
    }

    /// The merged values of `table`, without the word at `name`.
    fn given(&self, name: &[String], table: &[String]) -> Dict {
        let value = |key: String| {
            let at = join(table, &key);
            let value = self.get(&at).cloned()?;
            (at != name).then_some((key, value))
        };
        self.keys(table).into_iter().filter_map(value).collect()
    }

    /// The options of `kind` among `own`, of which the wrong ones are reported and replaced by
    /// their defaults.
    fn options(
        &mut self,
        family: &FamilySpec,
        kind: &Spec,
        (name, table): (&[String], &[String]),
        mut own: Dict,
    ) -> Options {
        let word = name.last().map_or("name", String::as_str);
        self.foreign(family, kind, (word, table), &own);
        own.retain(|key, _| kind.key(key).is_some());
        let n_before = self.problems.len();
        for key in kind.keys.iter().filter(|key| key.required) {
            if own.contains_key(&key.name) {
                continue;
            }
            let help = format!("add it, such as `{} = {}`", key.name, key.example);
            self.wrong_help(table, format!("`{}` needs `{}`", kind.name, key.name), help);
            own.insert(key.name.clone(), Value::serialize(&key.example).unwrap_or(Value::from("")));
        }
        let own = self.right(&kind.schema, &|own| kind.read(own).err(), table, own);
        let read = kind.read(&own).unwrap_or_default();
        if self.problems.len() == n_before {
            for wrong in kind.check(&read) {
                self.wrong(&join(table, wrong.key), wrong.what);
            }
        }
        read
    }

    /// Reports keys of a table that are no options of `kind`, which its key `word` names.
    fn foreign(
        &mut self,
        family: &FamilySpec,
        kind: &Spec,
        (word, table): (&str, &[String]),
        own: &Dict,
    ) {
        let is_foreign =
            |key: &&String| kind.key(key).is_none() && family.owners(key).next().is_some();
        let mut others = vec![word];
        for key in own.keys().filter(is_foreign) {
            let owners = any_of(family.owners(key));
            let what = format!("belongs to {owners}, but `{word}` is `{}`", kind.name);
            self.wrong(&join(table, key), what);
            others.push(key);
        }
        let options: Vec<&str> = kind.keys.iter().map(|key| key.name.as_str()).collect();
        self.only_of(table, &others, &options);
    }

    /// Notes a problem, with a remedy if there is one.
    fn wrong_with(&mut self, path: &[String], what: String, help: Option<String>) {
        let problem = self.problem(path, what).maybe_help(help);
        self.problems.push(problem);
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

    /// Reports keys at `path` that are not `known`, except those in `other`.
    pub(crate) fn only_of(&mut self, path: &[String], other: &[&str], known: &[&str]) {
        for key in self.keys(path) {
            if known.contains(&key.as_str()) || other.contains(&key.as_str()) {
                continue;
            }
            let help = remedy(&key, known.iter().copied());
            let at = join(path, &key);
            let order = strongest(&self.layers, &at).unwrap_or(0);
            let what = format!("is not a key of {}", self.noun);
            let problem = self.layers[order].at_key(&at, what, order);
            self.problems.push(problem.help(help));
        }
    }
}

/// Removes the value at `path`; a list as a whole.
fn take_away(table: &mut Dict, path: &[String]) {
    let Some((key, rest)) = path.split_first() else { return };
    match table.get_mut(key) {
        Some(Value::Dict(_, inner)) if !rest.is_empty() => take_away(inner, rest),
        _ => drop(table.remove(key)),
    }
}

/// Name of a path in messages: a parameter has the name of the key that it changes; the caret shows
/// which of its values is meant.
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
