//! `model.pretrained = "run:NAME/best"`, or a folder of checkpoints -> the checkpoint that is
//! meant.
//!
//! Its weights are taken, or their averages where the run kept some, as `ddprun eval` does; and the
//! options of its model that the experiment leaves out. The experiment stores the folder of one
//! step, so that it means the same checkpoint later.

use std::path::{Path, PathBuf};

use crate::checkpoint::{self, OpenCheckpoint};
use crate::config::kind::{Choice, Options};
use crate::config::{Loaded, PretrainedCheckpoint, Problem, Problems};
use crate::kinds::Kinds;
use crate::model;
use crate::plan::{ModelPlan, Plan};
use crate::record::{DESCRIPTION, newest_of, to_stderr};
use crate::runs::{self, CheckpointRef, RUN, StoredRun, has_checkpoint, nearest, run_of, split};
use crate::user_error::{ErrorPage, UserError};

const KEY: &str = "model.pretrained";

/// A checkpoint that does not exist, with a remedy.
struct NotFound {
    what: String,
    help: Option<String>,
}

impl From<String> for NotFound {
    fn from(what: String) -> Self {
        Self { what, help: None }
    }
}

impl From<runs::Error> for NotFound {
    fn from(error: runs::Error) -> Self {
        Self { what: error.to_string(), help: error.help() }
    }
}

/// A checkpoint, and the model of its run, if that is known.
struct TrainedCheckpoint {
    opened: OpenCheckpoint,
    model: Option<Choice>,
}

impl TrainedCheckpoint {
    fn new(opened: OpenCheckpoint, run: Option<&StoredRun>) -> Self {
        Self { opened, model: run.map(|run| run.plan.model.kind.clone()) }
    }
}

/// Puts the folder of the checkpoint that the experiment starts from in the place of the word for
/// it; weights of other programs stay as they are. Returns the options of the model that was
/// trained there, if it is of the experiment's kind.
///
/// # Errors
///
/// There is no such run or checkpoint, drawn on its key.
pub(crate) fn resolve(loaded: &mut Loaded) -> Result<Options, Problem> {
    let nothing = Options::new();
    let Some(asked) = loaded.experiment.model.pretrained.clone() else { return Ok(nothing) };
    let logs = loaded.experiment.logging.dir.clone();
    let found = match asked.to_str().and_then(|word| word.strip_prefix(RUN)) {
        Some(word) => of_run(&logs, word).map(Some),
        None => of_folder(&logs, &asked),
    };
    let found =
        found.map_err(|NotFound { what, help }| loaded.problem(KEY, what).maybe_help(help))?;
    let Some(TrainedCheckpoint { opened, model }) = found else { return Ok(nothing) };
    if let Some(first) = opened.skipped.first() {
        to_stderr(&format!("warning: `{KEY}`: {}", first.words(opened.state.step)));
    }
    let averaged = checkpoint::average(&opened).is_some();
    let (step, fingerprint) = (opened.state.step, opened.manifest.fingerprint());
    let path = step_folder(opened.path.clone(), step);
    // Its run may go on, and delete it before this one has begun.
    checkpoint::hold_checkpoint(&OpenCheckpoint { path: path.clone(), ..opened });
    loaded.pretrained = Some(PretrainedCheckpoint { step, averaged, fingerprint });
    loaded.experiment.model.pretrained = Some(path);
    let alike = model.filter(|model| model.name == loaded.experiment.model.name);
    Ok(alike.map_or(nothing, |model| model::inherited_options(model.options)))
}

/// Compares the weights to start from with the model, by the header of their file.
pub fn check_weights(loaded: &Loaded, plan: &Plan, kinds: &Kinds) -> Result<(), Problems> {
    let check = |model: &ModelPlan| kinds.models.check_pretrained(model);
    let checked = check(&plan.model).or_else(|unfit| {
        let deleted = if_deleted(&plan.model).map(|model| check(&model));
        deleted.unwrap_or(Err(unfit))
    });
    checked.map_err(|unfit| unfit_problem(loaded, unfit))
}

/// The model with the weights that this process keeps open, where the run of the checkpoint that
/// they are from has deleted it meanwhile.
fn if_deleted(model: &ModelPlan) -> Option<ModelPlan> {
    let path = model.pretrained.as_ref().filter(|path| !path.is_dir())?;
    let weights = checkpoint::open(path).ok()?.open_weights()?;
    Some(ModelPlan { pretrained: Some(weights), ..model.clone() })
}

pub(crate) fn unfit_problem(loaded: &Loaded, unfit: model::PretrainedError) -> Problems {
    loaded.problem(unfit.key, unfit.what).maybe_help(unfit.help).into()
}

/// The folder itself, and not a link to it that may soon lead elsewhere.
fn step_folder(path: PathBuf, step: u64) -> PathBuf {
    let beside = path.parent().map(|run| run.join(checkpoint::name(step)));
    beside.filter(|folder| folder.is_dir()).unwrap_or(path)
}

/// The checkpoint of a run, by the words that `ddprun eval` takes.
fn of_run(logs: &Path, word: &str) -> Result<TrainedCheckpoint, NotFound> {
    let (run, which) = split(word);
    let folder = if runs::find_sweep(Path::new(run)).is_some() {
        runs::best_trial(run).map_err(|refusal| in_words(&refusal))?
    } else {
        folder_of(logs, run, word)?
    };
    let run = StoredRun::seen_from_here(&folder)?;
    Ok(TrainedCheckpoint::new(run.checkpoint(which)?, Some(&run)))
}

/// The log folder of the run that is part of `word`. Runs without a checkpoint are passed over
/// where another of their name has one.
fn folder_of(logs: &Path, run: &str, word: &str) -> Result<PathBuf, NotFound> {
    runs::find_run_that(logs, Some(run), &has_checkpoint).map_err(|error| {
        let names = runs::run_names(logs);
        let near = nearest(word, &names);
        let list = || format!("choose one of {}", names.join(", "));
        let help = match near {
            Some(near) => Some(format!("did you mean `{RUN}{near}`?")),
            None if names.is_empty() => None,
            None => Some(list()),
        };
        NotFound { what: error.to_string(), help }
    })
}

/// The checkpoint that a folder is, or one of those in it or of its run; `None` of a file.
fn of_folder(logs: &Path, path: &Path) -> Result<Option<TrainedCheckpoint>, NotFound> {
    let Some(word) = path.to_str() else { return Ok(None) };
    let of_checkpoint = |opened: OpenCheckpoint| {
        let run = opened.path.parent().and_then(|folder| run_of(folder, logs));
        let run = run.and_then(|run| StoredRun::seen_from_here(&run).ok());
        TrainedCheckpoint::new(opened, run.as_ref())
    };
    // One that an earlier look has found may be deleted by now.
    if let Some(opened) = checkpoint::held_checkpoint(path) {
        let whole = || std::path::absolute(path);
        let path = path.canonicalize().or_else(|_| whole()).unwrap_or_else(|_| path.to_owned());
        return Ok(Some(of_checkpoint(OpenCheckpoint { path, ..opened })));
    }
    Ok(Some(match CheckpointRef::parse(word) {
        CheckpointRef::Checkpoint(path) => {
            of_checkpoint(checkpoint::open(&path).map_err(runs::Error::from)?)
        }
        CheckpointRef::Folder(path, which) => {
            let run = run_of(&path, logs).map(|run| StoredRun::seen_from_here(&run)).transpose()?;
            let kept = run.as_ref().map(|run| &run.plan.checkpoint);
            TrainedCheckpoint::new(runs::open(&path, kept, which)?, run.as_ref())
        }
        CheckpointRef::Run(run, which) if newest_of(Path::new(run), DESCRIPTION).is_file() => {
            let run = StoredRun::seen_from_here(Path::new(run))?;
            TrainedCheckpoint::new(run.checkpoint(which)?, Some(&run))
        }
        CheckpointRef::Run(..) if path.is_dir() => {
            let what = format!("`{}` is a folder without a checkpoint of ddprun", path.display());
            let help = "name the safetensors file in it, a checkpoint, or a run as `run:NAME`";
            return Err(NotFound { what, help: Some(help.to_owned()) });
        }
        CheckpointRef::Run(..) => return Ok(None),
    }))
}

/// Splits an error page into problem and help.
fn in_words(refusal: &ErrorPage) -> NotFound {
    let page = refusal.page();
    let page = page.trim_start_matches("error: ");
    match page.split_once("\n  do: ") {
        Some((what, help)) => NotFound { what: what.to_owned(), help: Some(help.to_owned()) },
        None => page.to_owned().into(),
    }
}
