//! Layers, weakest first: built-in defaults, `extends`, the file, `DDPRUN_*`, the command line.

use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};

use crate::config::check;
use crate::config::extract::{self, strongest};
use crate::config::keys::{Page, dotted, join, path_of};
use crate::config::kind::{FamilySpec, OwnedList, SINKS};
use crate::config::layer::{Layer, Source};
use crate::config::loaded::Loaded;
use crate::config::overrides::{self, Override, nested};
use crate::config::problem::{Problem, Problems};
use crate::config::unknown_keys::{self, ChosenKinds};
use crate::config::urls::{NO_URL, instead_of_url, url_scheme};
use crate::config::vocabulary::Vocabulary;
use crate::config::{sweep, text};

/// Files that extend files that extend files ... end here.
const MAX_DEPTH: usize = 16;

/// Reads the experiment file `path`, the files that it extends, the environment and `overrides`
/// (`key=value`).
///
/// # Errors
///
/// All problems of all layers at once.
pub fn load(
    path: &Path,
    overrides: &[String],
    vocabulary: &Vocabulary,
) -> Result<Loaded, Problems> {
    let text = text::read(path)?;
    Stack { must_exist: MustExist::All, ..Stack::new() }.build(
        path,
        text,
        &overrides::environment(),
        overrides,
        vocabulary,
    )
}

/// Reads the experiment file `path` and the experiments that it names as they are written, with
/// `overrides`: without the environment, and without a look at data and weights, which another
/// machine may have.
///
/// # Errors
///
/// As [`load`].
pub fn load_alone(
    path: &Path,
    overrides: &[String],
    vocabulary: &Vocabulary,
) -> Result<Loaded, Problems> {
    let text = text::read(path)?;
    Stack { must_exist: MustExist::Experiments, ..Stack::new() }.build(
        path,
        text,
        &[],
        overrides,
        vocabulary,
    )
}

/// Reads `text` as if it were the file `path`, without the environment: a stored `resolved.toml`, a
/// test.
///
/// # Errors
///
/// As [`load`].
pub fn load_text(
    path: &Path,
    text: &str,
    overrides: &[String],
    vocabulary: &Vocabulary,
) -> Result<Loaded, Problems> {
    Stack::new().build(path, text.to_owned(), &[], overrides, vocabulary)
}

/// Reads `text`, the stored experiment at `path`, as if it were given anew: with the environment of
/// now, but without a look at the files that it names.
///
/// # Errors
///
/// As [`load`].
pub fn load_stored(
    path: &Path,
    text: &str,
    overrides: &[String],
    vocabulary: &Vocabulary,
) -> Result<Loaded, Problems> {
    load_in(path, text, &overrides::environment(), overrides, vocabulary)
}

/// Reads `text` as the file `path` in `environment`.
///
/// # Errors
///
/// All problems of the text.
pub fn load_in(
    path: &Path,
    text: &str,
    environment: &[(String, String)],
    overrides: &[String],
    vocabulary: &Vocabulary,
) -> Result<Loaded, Problems> {
    Stack::new().build(path, text.to_owned(), environment, overrides, vocabulary)
}

/// Layers as they are collected.
pub(crate) struct Stack {
    layers: Vec<Layer>,
    /// For each layer, how many sources are weaker: all overrides of a command line are one source.
    groups: Vec<usize>,
    problems: Vec<Problem>,
    must_exist: MustExist,
}

/// Files that the experiment names and that must exist, beside those that it extends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MustExist {
    /// None: it was stored, and is not read from its own folder.
    None,
    /// Its fallback.
    Experiments,
    /// All: it is for this machine, and its paths begin in the current folder.
    All,
}

impl Stack {
    pub(crate) fn new() -> Self {
        let (layers, groups) = (vec![Layer::defaults()], vec![0]);
        Self { layers, groups, problems: Vec::new(), must_exist: MustExist::None }
    }

    pub(crate) fn build(
        mut self,
        path: &Path,
        text: String,
        environment: &[(String, String)],
        overrides: &[String],
        vocabulary: &Vocabulary,
    ) -> Result<Loaded, Problems> {
        self.file(path, text, &mut Vec::new());
        if let Some(problem) = self.layers.last().and_then(of_sweep) {
            // Nothing else is to be said of it: whatever an experiment needs is in its base.
            return Err(problem.into());
        }
        let page = vocabulary.page();
        let files = self.next_group();
        for (key, value) in environment {
            self.apply(overrides::variable(key, value), files, page);
        }
        let command_line = self.next_group();
        for asked in overrides::command_lines(overrides) {
            self.apply(asked, command_line, page);
        }
        if !self.problems.is_empty() {
            // What could not be read cannot be checked; its consequences would only hide it.
            return Err(Problems::new(self.problems));
        }
        self.finish(path, vocabulary).map_err(|problems| with_hints(&problems, path))
    }

    fn next_group(&self) -> usize {
        self.groups.last().map_or(0, |group| group + 1)
    }

    fn push(&mut self, layer: Layer, group: usize) {
        self.layers.push(layer);
        self.groups.push(group);
    }

    /// The file and, before it, those that it extends.
    fn file(&mut self, path: &Path, text: String, open: &mut Vec<PathBuf>) {
        let (mut layer, problems) = Layer::document(Source::File(path.to_owned()), text);
        let broken = !problems.is_empty();
        self.problems.extend(problems);
        open.push(identity(path));
        let bases = layer.dict.remove("extends");
        if open.len() > 1 {
            // It stands in for the file that names it only.
            layer.dict.remove("fallback");
        }
        if !broken {
            self.bases(&layer, bases, path, open);
        }
        open.pop();
        let group = self.next_group();
        self.push(layer, group);
    }

    fn bases(&mut self, layer: &Layer, bases: Option<Value>, path: &Path, open: &mut Vec<PathBuf>) {
        let at = |key: &[String], what: String| layer.at_value(key, what, 0);
        let key = vec!["extends".to_owned()];
        let named: Vec<(Vec<String>, Value)> = match bases {
            None => return,
            Some(Value::Array(_, items)) => items
                .into_iter()
                .enumerate()
                .map(|(index, item)| (vec!["extends".to_owned(), index.to_string()], item))
                .collect(),
            Some(one) => vec![(key, one)],
        };
        for (key, name) in named {
            let Some(name) = name.as_str() else {
                self.problems.push(at(&key, "must be a file's name, or a list of them".to_owned()));
                continue;
            };
            if let Some(scheme) = url_scheme(name) {
                let problem = at(&key, NO_URL.to_owned());
                self.problems.push(problem.help(instead_of_url(scheme)));
                continue;
            }
            let base = path.parent().unwrap_or(Path::new("")).join(name);
            if open.contains(&identity(&base)) || open.len() >= MAX_DEPTH {
                let what = "leads back to a file that extends this one".to_owned();
                self.problems.push(at(&key, what));
                continue;
            }
            match text::read(&base) {
                Ok(text) => self.file(&base, text, open),
                Err(problem) => {
                    let here = at(&key, problem.what().to_owned());
                    let usual = "check the path, which is relative to this file";
                    let help = problem.remedy().unwrap_or(usual);
                    self.problems.push(here.help(help));
                }
            }
        }
    }

    /// Adds a variable or an override.
    fn apply(&mut self, change: Result<Override, Problem>, group: usize, page: &Page) {
        match change {
            Err(problem) => self.problems.push(problem),
            Ok(Override::Set(layer)) => {
                let key =
                    ["extends", "fallback"].into_iter().find(|key| layer.dict.contains_key(*key));
                let Some(key) = key else { return self.push(layer, group) };
                let what = "works only in a file".to_owned();
                self.problems.push(layer.at_key(&[key.to_owned()], what, self.layers.len()));
            }
            Ok(Override::Entry(path, layer)) => match self.with_entry(&path, &layer) {
                Ok(layer) => self.push(layer, group),
                Err((what, help)) => {
                    let problem = layer.at_key(&path, what, self.layers.len()).help(help);
                    self.problems.push(problem);
                }
            },
            Ok(Override::Remove(path, layer)) => {
                if let Some(problem) = unknown_keys::unknown(&layer, &path, self.layers.len(), page)
                {
                    self.problems.push(problem);
                }
                for layer in &mut self.layers[1..] {
                    layer.remove(&path);
                }
            }
        }
    }

    /// The layer of an override that changes an entry of a list: with the whole list, as the weaker
    /// layers have it but for that entry. The error is what is wrong, and a remedy.
    fn with_entry(&self, path: &[String], own: &Layer) -> Result<Layer, (String, String)> {
        let place = path.iter().position(|key| key.parse::<usize>().is_ok()).unwrap_or(0);
        let (list, inside) = path.split_at(place);
        let name = dotted(list);
        let known = strongest(&self.layers, list).and_then(|order| self.layers[order].get(list));
        let Some(items @ Value::Array(..)) = known.cloned() else {
            let help = format!("write `{name}=[...]`, or name an entry of a list that is set");
            return Err((format!("there is no list `{name}` here"), help));
        };
        let n = items.as_array().map_or(0, <[Value]>::len);
        let is_there = inside[0].parse().is_ok_and(|index: usize| index < n);
        if !is_there {
            let last = n.saturating_sub(1);
            let help = if n == 0 {
                format!("write `{name}=[...]`")
            } else {
                format!("its entries are `{name}[0]` to `{name}[{last}]`")
            };
            return Err((format!("`{name}` has no entry {}", inside[0]), help));
        }
        let mut layer = Layer { dict: nested(list, items), ..own.clone() };
        let value = own.get(path).cloned().unwrap_or_else(|| Value::from(Dict::new()));
        let (last, parent) = path.split_last().unwrap_or((&inside[0], list));
        match layer.get_mut(parent) {
            Some(Value::Dict(_, keys)) => {
                keys.insert(last.clone(), value);
            }
            Some(Value::Array(_, items)) => {
                match last.parse().ok().and_then(|i: usize| items.get_mut(i)) {
                    Some(entry) => *entry = value,
                    None => {
                        return Err((
                            format!("`{}` has no such entry", dotted(parent)),
                            "check its index".to_owned(),
                        ));
                    }
                }
            }
            _ => {
                let help = format!("replace the whole list with `{name}=[...]`");
                return Err((format!("`{}` has no keys", dotted(parent)), help));
            }
        }
        // Whatever is wrong in the list now is so because of this word.
        let whole = own.places.get(path).cloned();
        let mut open: Vec<(Vec<String>, &Value)> =
            layer.get(list).map(|items| (list.to_vec(), items)).into_iter().collect();
        let mut places = layer.places.clone();
        while let Some((at, value)) = open.pop() {
            match value {
                Value::Dict(_, keys) => {
                    open.extend(keys.iter().map(|(key, value)| (join(&at, key), value)));
                }
                Value::Array(_, items) => {
                    let items = items.iter().enumerate();
                    open.extend(items.map(|(index, value)| (join(&at, &index.to_string()), value)));
                }
                _ => {}
            }
            if let Some(whole) = &whole {
                places.entry(at).or_insert_with(|| whole.clone());
            }
        }
        layer.places = places;
        Ok(layer)
    }

    fn finish(mut self, path: &Path, vocabulary: &Vocabulary) -> Result<Loaded, Problems> {
        let left_out = self.left_out(vocabulary);
        if !left_out.is_empty() {
            // The keys of what this build does not know cannot be checked.
            return Err(Problems::new(left_out));
        }
        let chosen = self.chosen(vocabulary);
        for (order, layer) in self.layers.iter_mut().enumerate() {
            // Where options of a user's models once stood.
            layer.lift("model", "options");
            layer.name_entries(&path_of(SINKS));
            self.problems.extend(unknown_keys::weed(layer, order, vocabulary.page(), &chosen));
        }
        self.drop_keys_of_other_kinds(vocabulary);
        let mut extracted = extract::extract(&mut self.layers, vocabulary);
        self.problems.append(&mut extracted.problems);
        let Some(mut experiment) = extracted.experiment else {
            return Err(Problems::new(self.problems));
        };
        let named_by_file = experiment.experiment.name.is_none();
        if named_by_file {
            experiment.experiment.name = Some(stem(path));
        }
        let mut loaded = Loaded::new(experiment, path.to_owned(), self.layers);
        let has_place = self.must_exist != MustExist::None;
        if let Some(fallback) = loaded.fallback_path().filter(|path| has_place && !path.is_file()) {
            let what = format!("`{}` does not exist", fallback.display());
            let usual = "check the path, which is relative to this file";
            self.problems.push(loaded.problem("fallback", what).help(usual));
        }
        if named_by_file {
            loaded.sources.insert("experiment.name".to_owned(), Source::FileName);
        }
        loaded.leave_out_overruled(vocabulary);
        loaded.infer_modes(vocabulary);
        self.problems.extend(check::all(&loaded, vocabulary, &extracted.broken));
        if self.problems.is_empty() {
            return Ok(loaded);
        }
        if self.must_exist == MustExist::All {
            let absent = loaded.absent_inputs(vocabulary);
            // If the file has other problems, an absent default path is not worth reporting.
            let is_new = |problem: &Problem| {
                loaded.is_given(problem.key())
                    && self.problems.iter().all(|p| p.key() != problem.key())
            };
            let absent: Vec<Problem> = absent.into_iter().filter(is_new).collect();
            self.problems.extend(absent);
        }
        Err(Problems::new(self.problems))
    }

    /// Problems of the tables that name what this build is without.
    fn left_out(&self, vocabulary: &Vocabulary) -> Vec<Problem> {
        let problem = |family: &FamilySpec| {
            let path = path_of(&format!("{}.name", family.table));
            let order = strongest(&self.layers, &path)?;
            let layer = &self.layers[order];
            let kind = family.left_out(layer.get(&path)?.as_str()?)?;
            Some(layer.at_value(&path, kind.to_string(), order).help(kind.help()))
        };
        vocabulary.families().iter().filter_map(problem).collect()
    }

    /// The kind that each table names. A default does not count: the user did not write it.
    fn chosen<'a>(&self, vocabulary: &'a Vocabulary) -> ChosenKinds<'a> {
        let kind = |family: &'a FamilySpec| {
            let path = path_of(&format!("{}.name", family.table));
            let layer = &self.layers[strongest(&self.layers, &path)?];
            let name = layer.get(&path).filter(|_| layer.source != Source::Defaults)?.as_str()?;
            Some((family.table, family.kind(name)?))
        };
        vocabulary.families().iter().filter_map(kind).collect()
    }

    /// Drops keys of a weaker source that belong only to its own kind, where a stronger source
    /// names another kind.
    fn drop_keys_of_other_kinds(&mut self, vocabulary: &Vocabulary) {
        let lists = vocabulary.lists();
        for OwnedList { table, key, owner } in lists.iter().flat_map(FamilySpec::owned_lists) {
            self.drop_keys(table, |kind| {
                let is_foreign = kind != owner;
                is_foreign.then(|| key.to_owned()).into_iter().collect()
            });
        }
        for family in vocabulary.families() {
            self.drop_keys(family.table, |kind| {
                let Some(kind) = family.kind(kind) else { return Vec::new() };
                let keys = family.kinds.iter().flat_map(|kind| &kind.keys);
                keys.map(|key| key.name.clone()).filter(|key| kind.key(key).is_none()).collect()
            });
        }
    }

    /// Drops such keys of one table; `foreign` names the keys that a kind does not have.
    fn drop_keys(&mut self, table: &str, foreign: impl Fn(&str) -> Vec<String>) {
        let name = path_of(&format!("{table}.name"));
        for index in 1..self.layers.len() {
            let weaker = self.groups.partition_point(|&group| group < self.groups[index]);
            let word = |layer: &Layer| layer.get(&name).and_then(Value::as_str).map(str::to_owned);
            let Some(kind) = word(&self.layers[index]) else { continue };
            let before = strongest(&self.layers[..weaker], &name);
            if before.and_then(|i| word(&self.layers[i])).is_none_or(|old| old == kind) {
                continue;
            }
            for key in foreign(&kind) {
                for layer in &mut self.layers[1..weaker.max(1)] {
                    layer.remove(&path_of(&format!("{table}.{key}")));
                }
            }
        }
    }
}

/// The problem of a sweep's file in the place of an experiment.
fn of_sweep(file: &Layer) -> Option<Problem> {
    let is_sweep = ["base", "sweep"].iter().all(|key| file.dict.contains_key(*key));
    let key = ["sweep".to_owned()];
    let problem = || file.at_key(&key, "makes this file a sweep, not an experiment".to_owned(), 0);
    let help = "run it with `ddprun sweep`, or remove `base` and `[sweep]`";
    is_sweep.then(|| problem().help(help))
}

/// Adds to problems of a key with several values in one word the command that tries them.
fn with_hints(problems: &Problems, path: &Path) -> Problems {
    let hinted = |problem: &Problem| {
        let Some(word) = problem.word().filter(|word| sweep::is_space(word)) else {
            return problem.clone();
        };
        let wants_list = problem.what().starts_with("must be a list");
        if let Some((key, values)) = word.split_once('=').filter(|_| wants_list) {
            let help =
                format!("write a list in brackets, with quotes for the shell: '{key}=[{values}]'");
            return problem.clone().help(help);
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || ".,_-+/=".contains(c);
        let word = if word.chars().all(plain) { word.to_owned() } else { format!("'{word}'") };
        let try_all =
            format!("to try several values, run `ddprun sweep {} {word}`", path.display());
        let help = match problem.remedy() {
            Some(help) => format!("{help}; {try_all}"),
            None => try_all,
        };
        problem.clone().help(help)
    };
    Problems::new(problems.iter().map(hinted).collect())
}

/// The canonical path of a file, equal for all of its names.
fn identity(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use test_support::mutated;

    use super::*;

    /// Files whose parts the damaged ones are made of.
    fn originals() -> Vec<Vec<u8>> {
        let small = "[model]\nname = \"mlp\"\nhidden = [8, 0x10]\n[data]\nname = \"shapes\"\nclasses = 4\n\
            [train]\nepochs = 3\nbatch_size = 4\n[optimizer]\nlr = 1e-2\n\
            [expect]\n\"val/loss\" = { at_most = 1.5e3 }\n";
        let strange = "[[data.transforms.val]]\nname = 'x'\n\"a.b\".c = \"\"\"\n\\u00e9\"\"\"\nt = 1979-05-27\n\
            [distributed]\nbucket_cap = \"1MiB\"\ntimeout = \"10m\"\nshards = -1\n";
        let page = Vocabulary::open().reference().to_owned();
        vec![small.into(), strange.into(), page.into()]
    }

    #[test]
    fn a_damaged_experiment_is_understood_or_refused() {
        let vocabulary = Vocabulary::open();
        let (mut understood, mut refused) = (0, 0);
        let whole = originals().swap_remove(0);
        for bytes in mutated::inputs(&originals(), 600, 74).chain([whole]) {
            let text = String::from_utf8_lossy(&bytes);
            match load_text(Path::new("damaged.toml"), &text, &[], &vocabulary) {
                Ok(_) => understood += 1,
                Err(problems) => {
                    assert!(!problems.page(false, 100).is_empty());
                    refused += 1;
                }
            }
        }
        assert!(understood > 1 && refused > 300, "{understood} understood, {refused} refused");
    }

    #[test]
    fn a_damaged_change_is_understood_or_refused() {
        let vocabulary = Vocabulary::open();
        let base = String::from_utf8_lossy(&originals()[0]).into_owned();
        let words =
            ["train.batch_size=64", "~scheduler.warmup", "model.hidden=[8,[9]]", "a.b={c=1}"];
        let words: Vec<Vec<u8>> = words.iter().map(|&word| word.into()).collect();
        let mut refused = 0;
        for bytes in mutated::inputs(&words, 400, 75) {
            let change = String::from_utf8_lossy(&bytes).into_owned();
            refused +=
                u32::from(load_text(Path::new("x.toml"), &base, &[change], &vocabulary).is_err());
        }
        assert!(refused > 200, "{refused} refused");
    }
}
