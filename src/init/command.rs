//! Data, or none -> an experiment file, planned before it is written.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::config;
use crate::data;
use crate::files;
use crate::init::names::{comment, name_of};
use crate::init::recipe::Recipe;
use crate::init::recipes::recipe;
use crate::init::recognise::recognise;
use crate::init::recognised::{ImageAnswer, InitRequest, RecognisedData, Task};
use crate::kinds::Kinds;
use crate::plan::{DataFacts, SplitPlan, Targets};
use crate::session::{Prepared, SINGLE_NODE, check_weights, complete};
use crate::user_error::{ErrorPage, ExitCode, UserError};

/// An experiment file that was written.
pub(crate) struct WrittenExperiment {
    pub(crate) file: PathBuf,
    /// The purpose of the experiment, and the conclusions from the data.
    pub(crate) about: String,
}

/// Writes an experiment for the data at `path`, or that of the quickstart, into `file`, or a file
/// with the name of the data.
pub(crate) fn init(
    path: Option<&Path>,
    file: Option<PathBuf>,
    request: InitRequest<'_>,
    kinds: &Kinds,
) -> Result<WrittenExperiment, ErrorPage> {
    match path {
        Some(path) => for_data(path, file, request, kinds),
        None => for_no_data(),
    }
}

fn for_data(
    path: &Path,
    file: Option<PathBuf>,
    request: InitRequest<'_>,
    kinds: &Kinds,
) -> Result<WrittenExperiment, ErrorPage> {
    let name = name_of(path);
    let to = file.unwrap_or_else(|| PathBuf::from(format!("{name}.toml")));
    refuse_existing(&to)?;
    let mut found = recognise(path, request)?;
    let facts = survey(&found, &name, kinds)?;
    found.conclude(&facts);
    let recipe = recipe(&found, &facts);
    let text = experiment(path, &to, &name, &found, &recipe);
    check(&to, &text, kinds)?;
    write(&to, &text, &format!("is for {}\n{}", recipe.about, listed(&found.notes)))
}

/// Conclusions, a line each: `  target       ...`
fn listed(notes: &[(&'static str, String)]) -> String {
    let width = notes.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    let line = |(what, note): &(&str, String)| format!("  {what:width$}  {note}");
    notes.iter().map(line).collect::<Vec<String>>().join("\n")
}

const QUICKSTART: &str = include_str!("../../experiments/quickstart.toml");

/// The experiment of the quickstart, with the commands in its comments as they are in its new
/// place.
fn quickstart() -> String {
    QUICKSTART
        .replace("cargo run --release -- ", "ddprun ")
        .replace("experiments/quickstart.toml", "quickstart.toml")
}

fn for_no_data() -> Result<WrittenExperiment, ErrorPage> {
    let to = PathBuf::from("quickstart.toml");
    refuse_existing(&to)?;
    write(&to, &quickstart(), "draws its own images and trains a small ResNet on two CPU ranks")
}

fn write(to: &Path, text: &str, what: &str) -> Result<WrittenExperiment, ErrorPage> {
    files::write_atomic(to, text.as_bytes()).map_err(|error| {
        let help =
            "name a file in a folder that is there and can be written: ddprun init PATH FILE";
        ErrorPage::of(ExitCode::Storage, &error).help(help)
    })?;
    Ok(WrittenExperiment { file: to.to_owned(), about: what.trim_end().to_owned() })
}

fn refuse_existing(to: &Path) -> Result<(), ErrorPage> {
    if to.symlink_metadata().is_err() {
        return Ok(());
    }
    let what = format!("`{}` is there already", to.display());
    Err(ErrorPage::refused(what, "name another file: ddprun init PATH FILE"))
}

/// Counts the data.
fn survey(found: &RecognisedData, name: &str, kinds: &Kinds) -> Result<DataFacts, ErrorPage> {
    let targets = match found.task {
        Task::Table { classify: false, .. } | Task::Series { .. } | Task::Behaviour => {
            Targets::Numbers
        }
        Task::ImageTable { answer: ImageAnswer::Labels, .. } => Targets::MultiLabel,
        Task::ImageTable { answer: ImageAnswer::Numbers, .. } => Targets::Numbers,
        _ => Targets::Classes,
    };
    // An option that all data sets share is not one of this one.
    let mut data = found.data.clone();
    let val_fraction = data.options.remove("val_fraction").and_then(|share| share.as_f64());
    let split = SplitPlan { val_fraction, ..SplitPlan::NONE };
    data::survey(
        &kinds.data,
        &data,
        &data::SurveyRequest { split, ..data::SurveyRequest::new(name, 0, targets) },
    )
    .map_err(|error| {
        let page = ErrorPage::from_error(&error);
        if error.help().is_none() && is_parquet(found) { page.help(NO_TABLE) } else { page }
    })
}

/// Remedy for a table in a parquet file, of which only demonstrations are read.
const NO_TABLE: &str = "save a table as csv: `pandas.read_parquet(FILE).to_csv(\"table.csv\", \
                        index=False)`; a parquet file of demonstrations has columns such as \
                        `observation.state` and `action`";

fn is_parquet(found: &RecognisedData) -> bool {
    let file = found.data.options.get("file").and_then(Value::as_str).map(Path::new);
    file.and_then(Path::extension).is_some_and(|ending| ending == "parquet")
}

/// The whole file.
fn experiment(
    from: &Path,
    to: &Path,
    name: &str,
    found: &RecognisedData,
    recipe: &Recipe,
) -> String {
    let written = format!("Written by `ddprun init {}` for {}", from.display(), recipe.about);
    let notes: String =
        found.notes.iter().map(|(what, note)| comment(&format!("{what}: {note}"))).collect();
    let keys: Vec<String> =
        found.data.options.iter().map(|(key, value)| line(key, &toml_of(value))).collect();
    format!(
        "# ddprun {}\n#\n{}{}schema = 1\n\n[experiment]\nname = \"{name}\"\nseed = 42                     # makes the run reproducible\n\n{}\n[data]\nname = \"{}\"\n{}{}",
        to.display(),
        comment(&written),
        if notes.is_empty() { notes } else { format!("#\n{notes}") },
        recipe.model,
        found.data.name,
        keys.concat(),
        recipe.rest
    )
}

/// A key of the data with its purpose, unless the notes tell it.
fn line(key: &str, value: &str) -> String {
    let why = match key {
        "ignore" => "no features",
        "missing_values" => "cells that count as empty, beside those of pandas",
        "drop_unlabelled" => "rows without a target are left out, and counted",
        "features" => "columns that hold no numbers, and what stands in empty cells",
        "standardize_target" => "`val/rmse_unscaled` is in the target's own unit",
        _ => return format!("{key} = {value}\n"),
    };
    format!("{}{key} = {value}\n", comment(why))
}

/// A value in TOML.
fn toml_of(value: &Value) -> String {
    match value {
        // Strings of JSON and of TOML differ in nothing that a path or a name may hold.
        Value::String(_) | Value::Number(_) | Value::Bool(_) => value.to_string(),
        Value::Array(values) => {
            format!("[{}]", values.iter().map(toml_of).collect::<Vec<_>>().join(", "))
        }
        Value::Object(keys) => {
            let keys = keys.iter().map(|(key, value)| format!("{key} = {}", toml_of(value)));
            format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "))
        }
        Value::Null => String::new(),
    }
}

/// Plans the experiment, so that what is written can be run.
fn check(to: &Path, text: &str, kinds: &Kinds) -> Result<(), ErrorPage> {
    let vocabulary = kinds.vocabulary();
    let mut loaded = config::load_text(to, text, &[], &vocabulary)?;
    complete(&mut loaded, &vocabulary, kinds)?;
    let prepared = Prepared::of(loaded, SINGLE_NODE, None, kinds)?;
    Ok(check_weights(&prepared.loaded, &prepared.plan, kinds)?)
}
