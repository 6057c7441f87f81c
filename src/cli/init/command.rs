//! `ddprun init [PATH] [FILE]`

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::cli::init::formatting::{comment, name_of};
use crate::cli::init::quickstart::quickstart;
use crate::cli::init::recipe::Recipe;
use crate::cli::init::recipes::recipe;
use crate::cli::init::recognise::recognise;
use crate::cli::init::recognised::{Asked, ImageAnswer, Recognised, Task};
use crate::cli::init_args::InitArgs;
use crate::cli::prepare::{ALONE, Prepared, check_weights, complete, refused, vocabulary};
use crate::cli::{Refusal, answer};
use crate::config;
use crate::data;
use crate::files;
use crate::kinds::Kinds;
use crate::plan::{DataFacts, SplitPlan, Targets};
use crate::worker::{self, exit};

/// Writes an experiment for the data at a path, or that of the quickstart, and says what to do with
/// it.
pub(crate) fn init(args: &InitArgs, kinds: &Kinds) -> Result<u8, Refusal> {
    match &args.path {
        Some(path) => {
            let asked = Asked { target: args.target.as_deref(), task: args.task };
            for_data(path, args.file.clone(), asked, kinds)
        }
        None => for_no_data(),
    }
}

fn for_data(
    path: &Path,
    file: Option<PathBuf>,
    asked: Asked<'_>,
    kinds: &Kinds,
) -> Result<u8, Refusal> {
    let name = name_of(path);
    let to = file.unwrap_or_else(|| PathBuf::from(format!("{name}.toml")));
    refuse_existing(&to)?;
    let mut found = recognise(path, asked)?;
    let facts = survey(&found, &name, kinds)?;
    found.conclude(&facts);
    let recipe = recipe(&found, &facts);
    let text = experiment(path, &to, &name, &found, &recipe);
    check(&to, &text, kinds)?;
    write(&to, &text, &format!("is for {}\n{}", recipe.about, listed(&found.notes)))
}

/// What was concluded, a line each: `  target       ...`
fn listed(notes: &[(&'static str, String)]) -> String {
    let width = notes.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    let line = |(what, note): &(&str, String)| format!("  {what:width$}  {note}");
    notes.iter().map(line).collect::<Vec<String>>().join("\n")
}

/// The quickstart's, which draws its own images.
fn for_no_data() -> Result<u8, Refusal> {
    let to = PathBuf::from("quickstart.toml");
    refuse_existing(&to)?;
    write(&to, &quickstart(), "draws its own images and trains a small ResNet on two CPU ranks")
}

/// Writes the file, and says what it does and what to do with it.
fn write(to: &Path, text: &str, what: &str) -> Result<u8, Refusal> {
    files::write_atomic(to, text.as_bytes()).map_err(|error| {
        let help =
            "name a file in a folder that is there and can be written: ddprun init PATH FILE";
        Refusal::of(exit::STORAGE, &error, Some(help.to_owned()))
    })?;
    let file = to.display();
    let what = what.trim_end();
    answer(
        "experiment",
        || json!({ "file": to, "about": what }),
        || {
            format!(
                "{file} {what}\nlook at it, then: ddprun plan {file}\n                 ddprun {file}\n"
            )
        },
    )
}

fn refuse_existing(to: &Path) -> Result<(), Refusal> {
    if to.symlink_metadata().is_err() {
        return Ok(());
    }
    let to = to.display();
    let page =
        format!("error: `{to}` is there already\n  do: name another file: ddprun init PATH FILE");
    Err(Refusal::new(exit::REFUSED, page))
}

/// The data, counted.
fn survey(found: &Recognised, name: &str, kinds: &Kinds) -> Result<DataFacts, Refusal> {
    let targets = match found.task {
        Task::Table { classify: false, .. } | Task::Series { .. } | Task::Behaviour => {
            Targets::Numbers
        }
        Task::ImageTable { answer: ImageAnswer::Labels, .. } => Targets::MultiLabel,
        Task::ImageTable { answer: ImageAnswer::Numbers, .. } => Targets::Numbers,
        _ => Targets::Classes,
    };
    // What all data sets share is no option of this one.
    let mut data = found.data.clone();
    let val_fraction = data.options.remove("val_fraction").and_then(|share| share.as_f64());
    let split = SplitPlan { val_fraction, ..SplitPlan::NONE };
    data::survey(&kinds.data, &data, &data::Asked { split, ..data::Asked::new(name, 0, targets) })
        .map_err(|error| {
            let help = error.help().or_else(|| is_parquet(found).then(|| NO_TABLE.to_owned()));
            Refusal::of(worker::of_data(&error), &error, help)
        })
}

/// What to do with a table in a parquet file, of which only demonstrations are read.
const NO_TABLE: &str = "save a table as csv: `pandas.read_parquet(FILE).to_csv(\"table.csv\", \
                        index=False)`; a parquet file of demonstrations has columns such as \
                        `observation.state` and `action`";

fn is_parquet(found: &Recognised) -> bool {
    let file = found.data.options.get("file").and_then(Value::as_str).map(Path::new);
    file.and_then(Path::extension).is_some_and(|ending| ending == "parquet")
}

/// The whole file.
fn experiment(from: &Path, to: &Path, name: &str, found: &Recognised, recipe: &Recipe) -> String {
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

/// A key of the data with what it is there for, if that is not said elsewhere.
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

/// A value as TOML writes it.
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

/// Plans the experiment: what is written can be run.
fn check(to: &Path, text: &str, kinds: &Kinds) -> Result<(), Refusal> {
    let mut loaded = config::load_text(to, text, &[], &vocabulary(kinds)).map_err(refused)?;
    complete(&mut loaded, kinds).map_err(refused)?;
    let prepared = Prepared::of(loaded, ALONE, None, kinds)?;
    check_weights(&prepared.loaded, &prepared.plan, kinds).map_err(refused)
}
