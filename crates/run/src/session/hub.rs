//! `hf:ORG/NAME[@REVISION][/FILE]` in an experiment -> the path of that file on this machine; and
//! `data.download` -> the files of a well-known data set.
//!
//! Files are fetched here, by the one process that reads the experiment, before any rank starts; what the cache has is
//! not fetched again. The run stores the paths in the cache, whose folders are named after the commit, so that it means
//! the same files later.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use ddprun_hub::{Config, Error, Hub, HubName, KnownSet, OnProgress, Progress, RepoKind, Snapshot};
use indicatif::HumanBytes;
use serde_json::Value;

use crate::config::kind::Choice;
use crate::config::{Loaded, Vocabulary, is_hub_name};
use crate::data::{self, DataSource, NamePattern};
use crate::files;
use crate::kinds::Kinds;
use crate::launch::rank_env;
use crate::record::{progress_bar, to_stderr};
use crate::user_error::{ErrorPage, ExitCode, UserError};

/// Choice of a file in a repository, for a name without one.
enum FileChoice {
    /// Weights in safetensors, in one file or several.
    Weights,
    /// The first of these files that is there.
    OneOf(&'static [&'static str]),
    /// None: the name must have a file.
    Named,
}

const PRETRAINED: &str = "model.pretrained";
const ADAPTERS: &str = "model.lora.adapters";

/// Weights of transformers, timm and PEFT, in this order.
const WEIGHTS: [&str; 3] =
    ["model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"];
/// Files that are read beside another, where the repository has them.
const BESIDE: [&str; 5] = [
    "config.json",
    "preprocessor_config.json",
    "adapter_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Commits by name, looked up once in this process, so that all trials of a sweep start from the same files.
static SNAPSHOTS: Mutex<Vec<(HubName, Snapshot)>> = Mutex::new(Vec::new());

/// Fetches the files of the hub that `loaded` names, and puts their paths in the place of the names.
///
/// # Errors
///
/// A name leads nowhere, or its file cannot be fetched; drawn on its key.
pub(crate) fn fetch(
    loaded: &mut Loaded,
    vocabulary: &Vocabulary,
    kinds: &Kinds,
) -> Result<(), ErrorPage> {
    let pretrained = loaded.experiment.model.pretrained.as_deref().and_then(Path::to_str);
    let mut names: Vec<(String, String)> =
        pretrained.map(|name| (PRETRAINED.to_owned(), name.to_owned())).into_iter().collect();
    let adapters =
        loaded.experiment.model.options.get("lora").and_then(|lora| lora.get("adapters"));
    names.extend(
        adapters.and_then(Value::as_str).map(|name| (ADAPTERS.to_owned(), name.to_owned())),
    );
    names.extend(
        loaded.path_options(vocabulary).into_iter().map(|(key, path)| (key, path.to_owned())),
    );
    names.retain(|(_, name)| is_hub_name(name));
    fetch_names(loaded, names, kinds).map_err(|failure| failure.page(loaded))
}

/// Fetches the files of the hub that the data of an experiment name. Where the hub cannot be reached, the reason is the
/// answer.
pub(crate) fn fetch_data_if_available(
    loaded: &Loaded,
    vocabulary: &Vocabulary,
    kinds: &Kinds,
) -> Result<Option<String>, ErrorPage> {
    let names = loaded.path_options(vocabulary).into_iter();
    let names = names.filter(|(key, name)| key.starts_with("data.") && is_hub_name(name));
    let names = names.map(|(key, name)| (key, name.to_owned())).collect();
    match fetch_names(&mut loaded.clone(), names, kinds) {
        Ok(()) => Ok(None),
        Err(FetchFailure::Hub { error, .. }) if error.is_unavailable() => {
            Ok(Some(error.to_string()))
        }
        Err(failure) => Err(failure.page(loaded)),
    }
}

/// Why a file of the hub is not to be had.
enum FetchFailure {
    /// The hub, for the name of this key.
    Hub { key: String, error: Error },
    /// The data set takes none of the repository's files.
    Refused(ErrorPage),
}

impl FetchFailure {
    fn page(self, loaded: &Loaded) -> ErrorPage {
        match self {
            Self::Hub { key, error } => page(loaded, &key, &error),
            Self::Refused(page) => page,
        }
    }
}

/// Puts the paths of files of the hub in the place of these names, by their keys.
fn fetch_names(
    loaded: &mut Loaded,
    names: Vec<(String, String)>,
    kinds: &Kinds,
) -> Result<(), FetchFailure> {
    let Some((first, _)) = names.first() else { return Ok(()) };
    let hub = open().map_err(|error| FetchFailure::Hub { key: first.clone(), error })?;
    let data = &loaded.experiment.data;
    let data = Choice { name: data.name.clone(), options: data.options.clone() };
    // Options that do not fit are refused where the data are counted.
    let source = kinds.data.build(&data).ok();
    for (key, name) in names {
        if let Some(source) = &source
            && key
                .strip_prefix("data.")
                .is_some_and(|option| source.repositories().contains(&option))
        {
            let folder = repository(&hub, loaded, source.as_ref(), &key, &name)?;
            loaded.set_option(&key, Value::from(folder.to_string_lossy()));
            continue;
        }
        let path = path_of(&hub, &key, &name);
        let path = path.map_err(|error| FetchFailure::Hub { key: key.clone(), error })?;
        // PEFT's adapters are a folder.
        let folder = (key == ADAPTERS).then(|| path.parent()).flatten().map(Path::to_owned);
        let path = folder.unwrap_or(path);
        if key == PRETRAINED {
            loaded.experiment.model.pretrained = Some(path);
        } else {
            loaded.set_option(&key, Value::from(path.to_string_lossy()));
        }
    }
    Ok(())
}

/// Fetches the files of well-known data sets that `data.download` asks for and that are not there.
///
/// # Errors
///
/// A path is absent that is no known set's, or a file cannot be fetched; drawn on its key.
pub(crate) fn download(loaded: &Loaded, kinds: &Kinds) -> Result<(), ErrorPage> {
    match download_sets(loaded, kinds)? {
        None => Ok(()),
        Some((key, error)) => Err(page(loaded, &key, &error)),
    }
}

/// As [`download`]; where there is no network, or not what is to be fetched, the reason is the answer.
pub(crate) fn download_if_available(
    loaded: &Loaded,
    kinds: &Kinds,
) -> Result<Option<String>, ErrorPage> {
    match download_sets(loaded, kinds)? {
        None => Ok(None),
        Some((_, error)) if error.is_unavailable() => Ok(Some(error.to_string())),
        Some((key, error)) => Err(page(loaded, &key, &error)),
    }
}

/// Fetches known sets, up to the first that cannot be fetched, which it returns with its key.
fn download_sets(loaded: &Loaded, kinds: &Kinds) -> Result<Option<(String, Error)>, ErrorPage> {
    if !loaded.experiment.data.download {
        return Ok(None);
    }
    let vocabulary = kinds.vocabulary();
    let paths = loaded.path_options(&vocabulary).into_iter();
    let paths = paths.filter(|(key, path)| key.starts_with("data.") && !is_hub_name(path));
    let hub = open()?;
    for (key, path) in paths {
        let path = Path::new(path);
        let Some((set, place)) = KnownSet::at(path) else {
            if path.exists() || !path.to_string_lossy().contains(['.', '/']) {
                continue;
            }
            let known: Vec<String> = KnownSet::paths().map(|path| format!("`{path}`")).collect();
            let what =
                format!("`{}` does not exist, and no download of it is known", path.display());
            let help = format!("paths of these sets can be fetched: {}", known.join(", "));
            let problem = loaded.problem(&key, what).help(help);
            return Err(ErrorPage::of_problems(ExitCode::Data, problem.into()));
        };
        let name = |file: &str| set.folder(place).join(file).display().to_string();
        let fetched = with_bar(name, |on_progress| hub.fetch_set(set, place, on_progress));
        if let Err(error) = fetched {
            return Ok(Some((key, error)));
        }
    }
    Ok(None)
}

fn open() -> Result<Hub, Error> {
    Hub::new(Config::from_env(&|name| rank_env::variable(name).map(Into::into)))
}

/// The path that a key means by a name of the hub.
fn path_of(hub: &Hub, key: &str, name: &str) -> Result<PathBuf, Error> {
    let (kind, choice) = meaning(key);
    let Some(name) = HubName::parse(name, kind).transpose()? else { return Ok(name.into()) };
    let snapshot = snapshot(hub, &name)?;
    let has = |file: &str| snapshot.files.iter().any(|other| other == file);
    let file = match (&name.file, choice) {
        (Some(file), _) => file.clone(),
        (None, FileChoice::Weights) => {
            let found = WEIGHTS.into_iter().find(|file| has(file));
            found.ok_or_else(|| missing(&name, "no weights as safetensors", &snapshot))?.to_owned()
        }
        (None, FileChoice::OneOf(files)) => {
            let found = files.iter().find(|file| has(file));
            found
                .ok_or_else(|| missing(&name, &format!("no `{}`", files[0]), &snapshot))?
                .to_string()
        }
        (None, FileChoice::Named) => {
            return Err(missing(&name, "many files, of which one is meant", &snapshot));
        }
    };
    let (folder, base) =
        file.rsplit_once('/').map_or(("", &*file), |(folder, base)| (folder, base));
    let beside =
        |base: &str| if folder.is_empty() { base.to_owned() } else { format!("{folder}/{base}") };
    // Weights come last: where they are, the rest is too.
    for other in BESIDE.map(beside).iter().filter(|other| **other != file && has(other)) {
        get(hub, &snapshot, other)?;
    }
    if base.ends_with(".index.json") {
        let index = get(hub, &snapshot, &file)?;
        for shard in shards(&index) {
            get(hub, &snapshot, &beside(&shard))?;
        }
    }
    get(hub, &snapshot, &file)
}

/// Fetches what the data set reads of the repository that a key names, or of a folder in it, and
/// returns its folder in the cache. A file of it may be named as well, or a pattern of files.
fn repository(
    hub: &Hub,
    loaded: &Loaded,
    source: &dyn DataSource,
    key: &str,
    name: &str,
) -> Result<PathBuf, FetchFailure> {
    let failed = |error: Error| FetchFailure::Hub { key: key.to_owned(), error };
    let named = HubName::parse(name, RepoKind::Dataset).transpose();
    let Some(named) = named.map_err(|bad| failed(bad.into()))? else { return Ok(name.into()) };
    let snapshot = snapshot(hub, &named).map_err(failed)?;
    if let Some(file) = named.file.as_ref().filter(|file| snapshot.files.contains(file)) {
        return get(hub, &snapshot, file).map_err(failed);
    }
    let below = Path::new(named.file.as_deref().unwrap_or_default());
    let pattern = NamePattern::of(below);
    let folder = if pattern.is_some() { below.parent().unwrap_or(below) } else { below };
    let is_meant = |file: &Path| {
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_direct = file.parent() == Some(Path::new(""));
        pattern.as_ref().is_none_or(|pattern| is_direct && pattern.matches(name))
    };
    let files = snapshot.files.iter().filter_map(|file| Path::new(file).strip_prefix(folder).ok());
    let files = files.filter(|file| is_meant(file));
    let files: Vec<String> = files.map(|file| file.to_string_lossy().into_owned()).collect();
    if let Some(file) = &named.file
        && files.is_empty()
        && pattern.is_none()
        && below.extension().is_some()
    {
        // The hub knows the name that is nearest.
        return get(hub, &snapshot, file).map_err(failed);
    }
    let unusable = |error: data::Error| {
        let (key, code) = match error.key() {
            Some(key) => (key, ExitCode::Refused),
            None => (key, error.exit_code()),
        };
        let cached = "the cache may lack files of the repository, and the hub was not asked";
        let help = if snapshot.is_cached { Some(cached.to_owned()) } else { error.help() };
        let problem = loaded.problem(key, error.to_string()).maybe_help(help);
        FetchFailure::Refused(ErrorPage::of_problems(code, problem.into()))
    };
    for file in source.repository_files(&named.to_string(), &files).map_err(unusable)? {
        let file = folder.join(file).to_string_lossy().into_owned();
        get(hub, &snapshot, &file).map_err(failed)?;
    }
    Ok(snapshot.folder.join(below))
}

/// The sort of repository that a key names, and its file.
fn meaning(key: &str) -> (RepoKind, FileChoice) {
    match key.rsplit('.').next().unwrap_or_default() {
        "pretrained" | "adapters" => (RepoKind::Model, FileChoice::Weights),
        "tokenizer" => (RepoKind::Model, FileChoice::OneOf(&["tokenizer.json"])),
        "chat_template" => {
            (RepoKind::Model, FileChoice::OneOf(&["chat_template.jinja", "tokenizer_config.json"]))
        }
        _ => (RepoKind::Dataset, FileChoice::Named),
    }
}

fn snapshot(hub: &Hub, name: &HubName) -> Result<Snapshot, Error> {
    let whole = HubName { file: None, ..name.clone() };
    let mut known = SNAPSHOTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, snapshot)) = known.iter().find(|(known, _)| *known == whole) {
        return Ok(snapshot.clone());
    }
    let snapshot = hub.snapshot(&whole)?;
    if let Some(why) = &snapshot.unasked {
        to_stderr(&format!(
            "warning: `{name}` is taken from the cache, as it was last seen: {why}"
        ));
    }
    known.push((whole, snapshot.clone()));
    Ok(snapshot)
}

fn get(hub: &Hub, snapshot: &Snapshot, file: &str) -> Result<PathBuf, Error> {
    let name =
        |file: &str| HubName { file: Some(file.to_owned()), ..snapshot.name.clone() }.to_string();
    with_bar(name, |on_progress| hub.fetch(snapshot, file, on_progress))
}

/// Runs downloads with a progress bar. `name` gives the name by which the user knows a file.
fn with_bar<T>(
    name: impl Fn(&str) -> String,
    fetch: impl FnOnce(OnProgress<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let bar = progress_bar("{msg}  {bar:30} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left");
    let mut told = String::new();
    let fetched = fetch(&mut |progress| {
        let (words, file, done, size) = match progress {
            Progress::Waiting { file } => {
                (format!("waiting for another process that fetches {}", name(file)), file, 0, 0)
            }
            Progress::Fetching { file, done, size } => {
                (format!("fetching {} ({})", name(file), HumanBytes(size)), file, done, size)
            }
            Progress::Unpacking { file, done, size } => {
                (format!("unpacking {}", name(file)), file, done, size)
            }
        };
        if told != words {
            to_stderr(&words);
            told = words;
            bar.reset();
        }
        if size > 0 {
            bar.set_message(file.to_owned());
            bar.set_length(size);
            bar.set_position(done);
        }
        true
    });
    bar.finish_and_clear();
    fetched
}

/// Files that an index names, each once.
fn shards(index: &Path) -> Vec<String> {
    let index: Option<Value> =
        files::read(index).ok().and_then(|text| serde_json::from_slice(&text).ok());
    let map = index.as_ref().and_then(|index| index.get("weight_map")?.as_object());
    let mut names: Vec<String> = map
        .into_iter()
        .flat_map(|map| map.values())
        .filter_map(|name| Some(name.as_str()?.to_owned()))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// The error for a repository in which no file can be chosen.
fn missing(name: &HubName, what: &str, snapshot: &Snapshot) -> Error {
    let shown = |file: &&String| !file.starts_with('.') && *file != "README.md";
    let files: Vec<String> = snapshot.files.iter().filter(shown).take(8).cloned().collect();
    Error::Unclear { name: name.repo.clone(), what: what.to_owned(), files }
}

/// The error, drawn on its key.
fn page(loaded: &Loaded, key: &str, error: &Error) -> ErrorPage {
    let problem = loaded.problem(key, error.to_string()).maybe_help(error.help());
    ErrorPage::of_problems(error.exit_code(), problem.into())
}
