//! A file and the words of a command line -> `Sweep`, with the experiment that it changes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};

use crate::config::check::{FOLDER_NAME, is_folder_name};
use crate::config::keys::{join, path_of};
use crate::config::kind::Choice;
use crate::config::layer::{Layer, Source};
use crate::config::loaded::Loaded;
use crate::config::overrides::{self, Override};
use crate::config::problem::{NamedText, Problem, Problems};
use crate::config::reader::Reader;
use crate::config::schema::Mode;
use crate::config::spans::KeySpan;
use crate::config::sweep::file::{DECLARED, SweepTable};
use crate::config::sweep::{METHOD, PRUNER};
use crate::config::sweep::{Search, Sweep, checks, conflicts, hydra};
use crate::config::table::keys_of;
use crate::config::{self, Vocabulary, text};

/// The number of ranks, which `sweep.devices_per_trial` decides.
const DEVICES: &str = "distributed.devices";

/// The pruner that stops no trial.
const NO_PRUNER: &str = "none";

/// The method that is one run: the learning-rate range test.
const RANGE_TEST: &str = "lr_range";

/// True if a word of the command line belongs to the sweep, not to the experiment.
pub fn is_sweep_word(word: &str) -> bool {
    word.trim_start_matches(['+', '~']).starts_with("sweep.")
}

/// True if a word of the command line gives a key several values: `optimizer.lr=0.1,0.2`.
pub fn is_space(word: &str) -> bool {
    split(word).is_some_and(|(_, _, value, _)| matches!(hydra::space(value), Some(Ok(_))))
}

/// Reads the sweep file or experiment `path`, and the words after it: `sweep.key=value`, spaces,
/// and changes that all trials have in common. Returns the sweep and its base, as all trials begin
/// with it.
///
/// # Errors
///
/// All problems at once, each with a caret.
pub fn load(
    path: &Path,
    words: &[String],
    vocabulary: &Vocabulary,
) -> Result<(Sweep, Loaded), Problems> {
    load_by(path, words, Loader { vocabulary, load: config::load })
}

/// Reads the sweep file `path` as it is written, and its base by [`config::load_alone`].
///
/// # Errors
///
/// As [`load`].
pub fn load_alone(path: &Path, vocabulary: &Vocabulary) -> Result<(Sweep, Loaded), Problems> {
    load_by(path, &[], Loader { vocabulary, load: config::load_alone })
}

/// How the base of a sweep is read.
#[derive(Clone, Copy)]
pub(super) struct Loader<'a> {
    pub(super) vocabulary: &'a Vocabulary,
    load: fn(&Path, &[String], &Vocabulary) -> Result<Loaded, Problems>,
}

fn load_by(path: &Path, words: &[String], loader: Loader<'_>) -> Result<(Sweep, Loaded), Problems> {
    let vocabulary = loader.vocabulary;
    let text = text::read(path)?;
    let (mut layer, problems) = Layer::document(Source::File(path.to_owned()), text);
    if !problems.is_empty() {
        return Err(Problems::new(problems));
    }
    let is_sweep = layer.dict.contains_key("sweep") || layer.dict.contains_key("base");
    if !is_sweep {
        // An experiment: it has nothing to say about the sweep but where it is.
        layer.dict = Dict::new();
    }
    let mut reader = Reader::new(layer, vocabulary, "a sweep");
    let changes = take_words(&mut reader, words)?;
    let base = if is_sweep { base(&mut reader, path) } else { Some(path.to_owned()) };
    let ending = if is_sweep { "" } else { ending(&reader) };
    let name = name(&mut reader, path, ending);
    let Some(base) = base else { return Err(Problems::new(reader.problems)) };
    let table = table(&mut reader);
    let mut sweep = Sweep {
        name,
        path: path.to_owned(),
        base,
        changes,
        trials: table.trials.map(|count| count as usize),
        time: table.time.map(|time| time.0),
        until: table.until,
        patience: table.patience.map(|count| count as usize),
        trials_per_device: table.trials_per_device,
        concurrent_trials: table.concurrent_trials,
        max_failures: table.max_failures,
        keep_pruned_checkpoints: table.keep_pruned_checkpoints,
        search: search(&mut reader, table),
    };
    conflicts::check(&mut reader, &sweep);
    let loaded = conflicts::with_base(&mut reader, &mut sweep, loader);
    match loaded {
        Some(loaded) if reader.problems.is_empty() => Ok((sweep, loaded)),
        _ => Err(Problems::new(reader.problems)),
    }
}

/// A problem of the metric that a sweep, read as [`load`] does, makes its trials watch: drawn where
/// the sweep asks for it.
pub fn metric_problem(
    path: &Path,
    words: &[String],
    vocabulary: &Vocabulary,
    problem: &Problem,
) -> Problems {
    let Ok(text) = text::read(path) else { return problem.clone().into() };
    let (layer, _) = Layer::document(Source::File(path.to_owned()), text);
    let mut reader = Reader::new(layer, vocabulary, "a sweep");
    match take_words(&mut reader, words) {
        Ok(_) => conflicts::at_metric(&reader, problem),
        Err(problem) => problem.into(),
    }
}

/// Puts the words of the command line into layers; what is left are changes of the experiment.
fn take_words(reader: &mut Reader, words: &[String]) -> Result<Vec<String>, Problem> {
    let mut changes = Vec::new();
    for word in words {
        if is_sweep_word(word) {
            match overrides::command_line(word)? {
                Override::Set(layer) | Override::Entry(_, layer) => reader.layers.push(layer),
                Override::Remove(path, _) => {
                    reader.remove(&path);
                }
            }
        } else if let Some(problem) = misplaced(word) {
            return Err(problem);
        } else if let Some(layer) = space(word)? {
            for path in spellings(word) {
                reader.remove(&path);
            }
            reader.layers.push(layer);
        } else {
            reader.problems.extend(overruled(word));
            changes.push(word.clone());
        }
    }
    Ok(changes)
}

/// The problem of an override for all trials that the sweep itself overrides.
fn overruled(word: &str) -> Option<Problem> {
    let (key, key_at, ..) = split(word).filter(|(key, ..)| *key == DEVICES)?;
    let (_, help) = checks::RESERVED.iter().find(|(name, _)| *name == key)?;
    let text = NamedText::command_line(word);
    Some(Problem::new(key, "is set by the sweep itself").at(&text, key_at, 1).help(*help))
}

/// Keys of `[sweep]`, beside the options of a method.
fn keys() -> impl Iterator<Item = &'static str> {
    keys_of(&DECLARED["properties"]["sweep"]).into_iter().flatten().map(|(key, _)| key.as_str())
}

/// The problem of a sweep's key that is written as one of the experiment.
fn misplaced(word: &str) -> Option<Problem> {
    let (key, key_at, ..) = split(word)?;
    // An experiment has a seed, too.
    if key == "seed" || !keys().any(|own| own == key) {
        return None;
    }
    let help = format!("did you mean `sweep.{}`?", &word[key_at.start..]);
    let text = NamedText::command_line(word);
    Some(Problem::new(key, "is not a key of an experiment").at(&text, key_at, 1).help(help))
}

/// Key and value of `key=value`, and where they stand.
fn split(word: &str) -> Option<(&str, Range<usize>, &str, Range<usize>)> {
    let start = word.len() - word.trim_start_matches('+').len();
    let sign = word.find('=')?;
    let (key, value) = (word.get(start..sign)?, &word[sign + 1..]);
    Some((key, start..sign, value, sign + 1..word.len()))
}

/// Both ways to write the parameter of a word in a file: quoted, and as tables.
fn spellings(word: &str) -> [Vec<String>; 2] {
    let key = split(word).map_or("", |(key, ..)| key);
    let head = ["sweep".to_owned(), "parameters".to_owned()];
    let quoted = head.iter().cloned().chain([key.to_owned()]).collect();
    [quoted, head.into_iter().chain(path_of(key)).collect()]
}

/// The layer of a word such as `optimizer.lr=0.1,0.01`; `None` for a single value.
fn space(word: &str) -> Result<Option<Layer>, Problem> {
    let Some((key, key_at, value, value_at)) = split(word) else { return Ok(None) };
    let text = NamedText::command_line(word);
    if let Some((what, help)) = hydra::unknown_function(value) {
        return Err(Problem::new(key, what).at(&text, value_at, 1).help(help));
    }
    let Some(space) = hydra::space(value) else { return Ok(None) };
    let hydra::Space { table, places: written } =
        space.map_err(|what| Problem::new(key, what).at(&text, value_at.clone(), 1))?;
    let place = KeySpan { key: key_at, value: value_at.clone() };
    let path = spellings(word)[0].clone();
    let mut places: BTreeMap<_, _> =
        (1..=path.len()).map(|length| (path[..length].to_vec(), place.clone())).collect();
    for name in table.keys() {
        let inner = KeySpan { key: value_at.clone(), value: value_at.clone() };
        places.insert(join(&path, name), inner);
    }
    for (inside, at) in written {
        let at = value_at.start + at.start..value_at.start + at.end;
        places.insert([&path[..], &inside[..]].concat(), KeySpan { key: at.clone(), value: at });
    }
    let parameters = Dict::from([(key.to_owned(), Value::from(table))]);
    let sweep = Dict::from([("parameters".to_owned(), Value::from(parameters))]);
    let dict = Dict::from([("sweep".to_owned(), Value::from(sweep))]);
    Ok(Some(Layer { source: Source::CommandLine(word.to_owned()), dict, places, text }))
}

/// The experiment that the file names, and the file's other keys.
fn base(reader: &mut Reader, path: &Path) -> Option<PathBuf> {
    reader.only(&[], &["schema", "base", "sweep"]);
    let schema = path_of("schema");
    if reader.get(&schema).is_none() {
        reader.wrong_help(&schema, "is missing; there is no default", "add `schema = 1`");
    } else if reader.get(&schema).and_then(Value::to_i128) != Some(1) {
        reader.wrong(&schema, "this ddprun reads schema 1");
    }
    let key = path_of("base");
    if reader.get(&key).is_none() {
        let help = "name the experiment that all trials change, such as `base = \"resnet.toml\"`";
        reader.wrong_help(&key, "is missing; there is no default", help);
        return None;
    }
    let written = reader.text(&key)?;
    if let Some(scheme) = config::url_scheme(&written) {
        reader.wrong_help(&key, config::NO_URL, config::instead_of_url(scheme));
        return None;
    }
    let base = path.parent().unwrap_or(Path::new("")).join(written);
    match text::read(&base) {
        Ok(_) => Some(base),
        Err(problem) => {
            let usual = "check the path, which is relative to this file";
            let help = problem.remedy().unwrap_or(usual).to_owned();
            reader.wrong_help(&key, problem.what().to_owned(), help);
            None
        }
    }
}

/// Suffix of the experiment's name: a range test and a sweep cannot share a folder.
fn ending(reader: &Reader) -> &'static str {
    match reader.get(&path_of(METHOD)).and_then(Value::as_str) {
        Some(RANGE_TEST) => "-lr-range",
        _ => "-sweep",
    }
}

/// `sweep.name`, or the name of the file with `ending`.
fn name(reader: &mut Reader, path: &Path, ending: &str) -> String {
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let usual = stem.unwrap_or_default() + ending;
    let key = path_of("sweep.name");
    let name = reader.get(&key).and_then(Value::as_str).map_or(usual, str::to_owned);
    if !is_folder_name(&name) {
        reader.wrong_help(&key, format!("`{name}` cannot name a folder"), FOLDER_NAME);
    }
    name
}

/// The keys of `[sweep]`, but for those whose options are in tables of their own.
fn table(reader: &mut Reader) -> SweepTable {
    let table = path_of("sweep");
    if reader.get(&table).is_some_and(|value| value.as_dict().is_none()) {
        reader.wrong(&table, "must be a table: begin it with `[sweep]`");
    }
    let methods = reader.vocabulary.family(METHOD).cloned();
    let with_options =
        methods.iter().flat_map(|family| &family.kinds).filter(|kind| !kind.keys.is_empty());
    let known: Vec<&str> = keys().chain(with_options.map(|kind| kind.name)).collect();
    reader.only(&table, &known);
    // What names a kind is read with it.
    let is_own = |key: &&str| !["method", "pruner"].contains(key);
    let value = |key: &str| Some((key.to_owned(), reader.get(&join(&table, key))?.clone()));
    let own = keys().filter(is_own).filter_map(value).collect();
    reader.read(&DECLARED["properties"]["sweep"], &table, own)
}

/// Everything that decides the values of trials.
fn search(reader: &mut Reader, table: SweepTable) -> Search {
    let method = method(reader);
    let parameters = checks::parameters(reader);
    Search {
        method,
        metric: table.metric.unwrap_or_default(),
        goal: table.goal.map_or(Mode::Min, Mode::from),
        seed: table.seed,
        constraints: checks::constraints(reader),
        list: checks::tables(reader, "sweep.list", &[]),
        start: checks::tables(reader, "sweep.start", &parameters),
        repeats: table.repeats,
        pruner: pruner(reader),
        devices_per_trial: table.devices_per_trial,
        parameters,
    }
}

/// `pruner = "asha"`, or a table with its name and its options.
fn pruner(reader: &mut Reader) -> Choice {
    let table = path_of(PRUNER);
    let name = join(&table, "name");
    merge_pruners(reader, &table, &name);
    match reader.get(&table) {
        None => Choice::named(NO_PRUNER),
        Some(Value::Dict(..)) if reader.get(&name).is_none() => {
            reader.wrong_help(&table, "has no name", "add one, such as `name = \"asha\"`");
            Choice::named(NO_PRUNER)
        }
        Some(Value::Dict(..)) => reader.choice(PRUNER, &name, NO_PRUNER, &table),
        Some(_) => reader.choice(PRUNER, &table, NO_PRUNER, &table),
    }
}

/// Makes the pruner a table in all layers, if one writes it as a word and another as a table:
/// `sweep.pruner=asha sweep.pruner.min_resource="3 epochs"` is one pruner. Options that only the
/// kind of a weaker layer has go with its name.
fn merge_pruners(reader: &mut Reader, table: &[String], name: &[String]) {
    let is_table = |layer: &Layer| layer.get(table).is_some_and(|value| value.as_dict().is_some());
    if !reader.layers.iter().any(is_table) {
        return;
    }
    for layer in &mut reader.layers {
        let Some(word @ Value::String(..)) = layer.get(table).cloned() else { continue };
        if let Some(place) = layer.get_mut(table) {
            *place = Value::from(Dict::from([("name".to_owned(), word)]));
        }
        if let Some(place) = layer.places.get(table).cloned() {
            layer.places.insert(name.to_vec(), place);
        }
    }
    let Some(strongest) = reader.layers.iter().rposition(|layer| layer.get(name).is_some()) else {
        return;
    };
    let chosen = reader.layers[strongest].get(name).and_then(Value::as_str).unwrap_or_default();
    let Some(family) = reader.vocabulary.family(PRUNER).cloned() else { return };
    let Some(kind) = family.kind(chosen) else { return };
    for layer in &mut reader.layers[..strongest] {
        let Some(options) = layer.table_mut(table) else { continue };
        options.retain(|key, _| kind.key(key).is_some() || family.owners(key).next().is_none());
    }
}

/// The method, whose options stand in a table of its own name: `[sweep.lr_range]`.
fn method(reader: &mut Reader) -> Choice {
    let path = path_of(METHOD);
    let name = reader.get(&path).and_then(Value::as_str).unwrap_or_default();
    let table = join(&path_of("sweep"), name);
    reader.choice(METHOD, &path, "grid", &table)
}

/// The base with `changes`.
pub(super) fn load_base(
    sweep: &Sweep,
    changes: &[String],
    loader: Loader<'_>,
) -> Result<Loaded, Problems> {
    let all: Vec<String> = sweep.changes.iter().chain(changes).cloned().collect();
    (loader.load)(&sweep.base, &all, loader.vocabulary)
}
