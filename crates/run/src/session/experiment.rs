//! Experiment file -> [`Loaded`]: every key given, by the file, by what a key's neighbours imply, or by
//! the checkpoint that the run starts from. Nothing is planned yet (`prepare`).

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::config::kind::{Choice, Options};
use crate::config::schema::Loss;
use crate::config::values::{Auto, Interval};
use crate::config::{self, Loaded, Problems, Vocabulary};
use crate::failpoint;
use crate::kinds::Kinds;
use crate::plan::{ComponentFacts, Targets, chosen_loss};
use crate::record::to_stderr;
use crate::session::hub;
use crate::session::other_file::refuse_other_files;
use crate::session::pretrained::{self, unfit_problem};
use crate::user_error::{ErrorPage, ExitCode};

/// Reads the experiment at `path` with `changes`, or the one that it falls back on, and what the files beside its
/// weights tell.
pub fn load(path: &Path, changes: &[String], kinds: &Kinds) -> Result<Loaded, ErrorPage> {
    refuse_other_files(path)?;
    let vocabulary = kinds.vocabulary();
    let loaded = config::load(path, changes, &vocabulary)?;
    let mut loaded = follow_fallbacks(loaded, changes, &vocabulary, kinds)?;
    let absent = loaded.absent_inputs(&vocabulary);
    // A single one is reported by what opens it, which knows what the file should hold. Files that
    // are to be downloaded are looked for where the data are measured.
    if absent.len() > 1 && !loaded.experiment.data.download {
        let are_data = absent.iter().all(|problem| problem.key().starts_with("data."));
        let code = if are_data { ExitCode::Data } else { ExitCode::Refused };
        return Err(ErrorPage::of_problems(code, Problems::new(absent)));
    }
    check_folders(&loaded)?;
    complete(&mut loaded, &vocabulary, kinds)?;
    failpoint::reach("parse");
    Ok(loaded)
}

/// The experiment itself or, as long as its data are neither on this machine nor can be fetched, the one that it falls
/// back on, read with `changes`. The user is told.
pub(crate) fn follow_fallbacks(
    mut loaded: Loaded,
    changes: &[String],
    vocabulary: &Vocabulary,
    kinds: &Kinds,
) -> Result<Loaded, ErrorPage> {
    let mut tried = vec![loaded.path.clone()];
    while let Some(fallback) = loaded.fallback(vocabulary)
        && let Some(why) = missing_data(&loaded, vocabulary, kinds)?
    {
        if tried.contains(&fallback) {
            let what = "leads back to an experiment whose data are missing";
            let help = "name one whose data are generated, or can be fetched";
            return Err(loaded.problem("fallback", what).help(help).into());
        }
        to_stderr(&format!("{why}; taking `{}` instead", fallback.display()));
        loaded = config::load(&fallback, changes, vocabulary)?;
        tried.push(fallback);
    }
    Ok(loaded)
}

/// The reason why the data of an experiment are not available, after an attempt to fetch them; `None` if they are.
fn missing_data(
    loaded: &Loaded,
    vocabulary: &Vocabulary,
    kinds: &Kinds,
) -> Result<Option<String>, ErrorPage> {
    let absent = if loaded.experiment.data.download {
        hub::download_if_available(loaded, kinds)?
    } else {
        let absent = loaded.absent_inputs(vocabulary);
        let data = absent.iter().find(|problem| problem.key().starts_with("data."));
        data.map(|problem| problem.what().to_owned())
    };
    match absent {
        Some(why) => Ok(Some(why)),
        None => hub::fetch_data_if_available(loaded, vocabulary, kinds),
    }
}

/// Refuses files where folders are to hold the runs.
fn check_folders(loaded: &Loaded) -> Result<(), Problems> {
    let experiment = &loaded.experiment;
    let folders =
        [("logging.dir", &experiment.logging.dir), ("checkpoint.dir", &experiment.checkpoint.dir)];
    let files = folders.into_iter().filter(|(_, path)| path.is_file());
    let problem = |(key, path): (&str, &PathBuf)| {
        let what = format!("`{}` is a file, not a folder", path.display());
        loaded.problem(key, what).help("name a folder; one that is absent is made")
    };
    let problems: Vec<_> = files.map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(Problems::new(problems)) }
}

/// Fetches files of the hub, finds the checkpoint that a run is to start from, and fills in what the experiment does not
/// give: what the run of that checkpoint, and files beside the weights and the adapters, tell.
pub fn complete(
    loaded: &mut Loaded,
    vocabulary: &Vocabulary,
    kinds: &Kinds,
) -> Result<(), ErrorPage> {
    hub::fetch(loaded, vocabulary, kinds)?;
    follow_target(loaded, vocabulary, kinds);
    let options = pretrained::resolve(loaded)?;
    fill(loaded, options);
    let experiment = &loaded.experiment;
    let model = &experiment.model;
    let chosen = Choice { name: model.name.clone(), options: model.options.clone() };
    let Ok(model) = kinds.models.build(&chosen) else { return Ok(()) };
    let seq_len = experiment.data.options.get("seq_len").and_then(Value::as_u64);
    let (weights, seq_len) = (experiment.model.pretrained.as_deref(), seq_len.map(|n| n as u32));
    let found = model.complete(weights, seq_len).map_err(|unfit| unfit_problem(loaded, unfit))?;
    fill(loaded, found.options);
    let model = &mut loaded.experiment.model;
    if let (None, Some(outputs)) = (model.num_classes.given(), found.outputs) {
        model.num_classes = Auto::Given(outputs);
    }
    Ok(())
}

/// Fills in the loss and the metrics that fit the target of the data, where the experiment does not
/// give them.
pub fn follow_target(loaded: &mut Loaded, vocabulary: &Vocabulary, kinds: &Kinds) {
    let asked = &loaded.experiment.data;
    let data = Choice { name: asked.name.clone(), options: asked.options.clone() };
    let is_open = |key: &str| !loaded.is_given(key);
    let is_scaled = data.options.get("standardize_target") == Some(&Value::Bool(true));
    let wants_unscaled = is_scaled && is_open("validation.metrics");
    if !(wants_unscaled || !loaded.gives_any_of("loss") || is_open("checkpoint.monitor")) {
        return;
    }
    // Data that cannot be read are refused where they are counted.
    let target = kinds.data.build(&data).ok().and_then(|source| source.target().ok()).flatten();
    let Some(target) = target else { return };
    if !loaded.gives_any_of("loss") {
        let loss = match target {
            Targets::Classes => "cross_entropy",
            Targets::MultiLabel => "bce_with_logits",
            Targets::Numbers | Targets::Series => "mse",
            Targets::Preferences => "dpo",
        };
        loaded.follow("loss.name", |experiment| {
            if experiment.loss.name != loss {
                experiment.loss = Loss { name: loss.to_owned(), options: Options::new() };
            }
        });
    }
    let Ok(compared) = kinds.loss(&chosen_loss(loaded)).map(|loss| loss.targets) else { return };
    let monitor = match compared {
        Targets::Classes => "val/accuracy",
        Targets::MultiLabel => "val/average_precision",
        Targets::Numbers | Targets::Series | Targets::Preferences => "val/loss",
    };
    let is_evaluated = loaded.experiment.validation.every != Interval::Never;
    if is_evaluated && !loaded.is_given("checkpoint.monitor") {
        let mode = loaded.experiment.checkpoint.mode;
        let better = vocabulary.mode_of(monitor).unwrap_or(mode);
        loaded.follow("checkpoint.monitor", |experiment| {
            monitor.clone_into(&mut experiment.checkpoint.monitor);
        });
        if !loaded.is_given("checkpoint.mode") {
            loaded.follow("checkpoint.mode", |experiment| experiment.checkpoint.mode = better);
        }
    }
    if wants_unscaled && compared == Targets::Numbers {
        let metrics = vec!["rmse_unscaled".to_owned()];
        loaded.follow("validation.metrics", |experiment| experiment.validation.metrics = metrics);
    }
}

/// Options of the model that the experiment does not give.
fn fill(loaded: &mut Loaded, options: Options) {
    let is_open = |key: &String| key == "lora" || !loaded.is_given(&format!("model.{key}"));
    let options: Options = options.into_iter().filter(|(key, _)| is_open(key)).collect();
    loaded.experiment.model.options.extend(options);
}
