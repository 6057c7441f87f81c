//! `model.pretrained = "run:NAME/best"`, or a folder of checkpoints -> the checkpoint that is
//! meant.
//!
//! Only its weights are taken; their averages where the run kept some, as `ddprun eval` does. What
//! the experiment stores is the folder of one step, so that it means the same checkpoint later.

use std::path::{Path, PathBuf};

use crate::checkpoint::{self, Opened};
use crate::cli::run_files::{Description, seen_from_here};
use crate::cli::{Refusal, find_run};
use crate::config::{Loaded, PretrainedCheckpoint, Problem, closest};
use crate::report;

const KEY: &str = "model.pretrained";
/// What stands before the name of a run.
pub(crate) const RUN: &str = "run:";

/// Why there is no such checkpoint, and what to do about it.
struct Unfound {
    what: String,
    help: Option<String>,
}

impl From<String> for Unfound {
    fn from(what: String) -> Self {
        Self { what, help: None }
    }
}

/// Which checkpoint of a run is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// The best; the newest where no best one is kept.
    Any,
    Best,
    Newest,
    Step(u64),
}

/// Puts the folder of the checkpoint that the experiment starts from in the place of the word for
/// it; weights of other programs stay as they are.
///
/// # Errors
///
/// There is no such run or checkpoint, drawn on its key.
pub(crate) fn resolve(loaded: &mut Loaded) -> Result<(), Problem> {
    let Some(asked) = loaded.experiment.model.pretrained.clone() else { return Ok(()) };
    let logs = loaded.experiment.logging.dir.clone();
    let found = match asked.to_str().and_then(|text| text.strip_prefix(RUN)) {
        Some(word) => of_run(&logs, word).map(Some),
        None => of_folder(&asked),
    };
    let opened = found.map_err(|Unfound { what, help }| {
        let problem = loaded.problem(KEY, what);
        match help {
            Some(help) => problem.help(help),
            None => problem,
        }
    })?;
    let Some(opened) = opened else { return Ok(()) };
    let averaged = checkpoint::average(&opened).is_some();
    let Opened { path, manifest, state } = opened;
    let step = state.step;
    let fingerprint = manifest.fingerprint();
    loaded.pretrained = Some(PretrainedCheckpoint { step, averaged, fingerprint });
    loaded.experiment.model.pretrained = Some(step_folder(path, step));
    Ok(())
}

/// The folder itself, and not a link to it that may soon lead elsewhere.
fn step_folder(path: PathBuf, step: u64) -> PathBuf {
    let beside = path.parent().map(|run| run.join(checkpoint::name(step)));
    beside.filter(|folder| folder.is_dir()).unwrap_or(path)
}

/// The checkpoint of a run, by the words that `ddprun eval` takes, and maybe `/best`, `/latest` or
/// `/step-00000300`.
fn of_run(logs: &Path, word: &str) -> Result<Opened, Unfound> {
    let (run, which) = split(word);
    let folder = folder_of(logs, run)?;
    let description = seen_from_here(&folder).map_err(|refusal| in_words(&refusal))?;
    of_description(&description, which)
}

/// The run, and which of its checkpoints.
fn split(word: &str) -> (&str, Which) {
    let Some((run, last)) = word.rsplit_once('/') else { return (word, Which::Any) };
    let step = || last.strip_prefix("step-")?.parse().ok().map(Which::Step);
    match last {
        "best" => (run, Which::Best),
        "latest" => (run, Which::Newest),
        _ => step().map_or((word, Which::Any), |step| (run, step)),
    }
}

/// The log folder of the run; of a sweep that of its best trial. Runs without a checkpoint are
/// passed over where another of their name has one.
fn folder_of(logs: &Path, word: &str) -> Result<PathBuf, Unfound> {
    if find_run::find_sweep(Path::new(word)).is_some() {
        return find_run::best_trial(word).map_err(|refusal| in_words(&refusal));
    }
    report::find_run_that(logs, Some(word), &has_checkpoint).map_err(|error| {
        let names = report::run_names(logs);
        let near = closest(word, names.iter().map(String::as_str));
        let list = || format!("runs are {}", names.join(", "));
        let help = match near {
            Some(near) => Some(format!("did you mean `{RUN}{near}`?")),
            None if names.is_empty() => None,
            None => Some(list()),
        };
        Unfound { what: error.to_string(), help }
    })
}

/// Whether the run in this log folder has a checkpoint.
pub(crate) fn has_checkpoint(folder: &Path) -> bool {
    let checkpoints = seen_from_here(folder).map(|found| found.run.checkpoints);
    checkpoints.is_ok_and(|folder| checkpoint::all(&folder).is_ok_and(|all| !all.is_empty()))
}

fn of_description(description: &Description, which: Which) -> Result<Opened, Unfound> {
    let (folder, plan) = (&description.run.checkpoints, description.plan.checkpoint());
    let unusable = |error: checkpoint::Error| Unfound::from(error.to_string());
    match which {
        Which::Newest => checkpoint::newest(folder).map_err(unusable),
        Which::Step(step) => {
            checkpoint::open(&folder.join(checkpoint::name(step))).map_err(unusable)
        }
        Which::Any => checkpoint::best_or_newest(folder, plan).map_err(unusable),
        Which::Best => checkpoint::best(folder, plan).map_err(unusable)?.ok_or_else(|| Unfound {
            what: format!("no best checkpoint is kept in `{}`", folder.display()),
            help: Some("use `/latest`".to_owned()),
        }),
    }
}

/// The checkpoint that a folder is, or the best of those in it; `None` of a file.
fn of_folder(path: &Path) -> Result<Option<Opened>, Unfound> {
    if !path.is_dir() {
        return Ok(None);
    }
    let unusable = |error: checkpoint::Error| Unfound::from(error.to_string());
    if checkpoint::is_checkpoint(path) {
        return checkpoint::open(path).map(Some).map_err(unusable);
    }
    if let Ok(description) = seen_from_here(path) {
        return of_description(&description, Which::Any).map(Some);
    }
    if checkpoint::all(path).map_err(unusable)?.is_empty() {
        let what = format!("`{}` is a folder without a checkpoint of ddprun", path.display());
        let help = "name the safetensors file in it, a checkpoint, or a run as `run:NAME`";
        return Err(Unfound { what, help: Some(help.to_owned()) });
    }
    let best = path.join("best");
    let opened = if best.is_dir() { checkpoint::open(&best) } else { checkpoint::newest(path) };
    opened.map(Some).map_err(unusable)
}

/// A refusal as the words of a problem.
fn in_words(refusal: &Refusal) -> Unfound {
    let page = refusal.page().trim_start_matches("error: ");
    match page.split_once("\n  do: ") {
        Some((what, help)) => Unfound { what: what.to_owned(), help: Some(help.to_owned()) },
        None => page.to_owned().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_says_which_checkpoint_if_it_is_a_word_for_one() {
        let check = |word, run, which| assert_eq!(split(word), (run, which), "{word}");
        check("quickstart", "quickstart", Which::Any);
        check("quickstart/best", "quickstart", Which::Best);
        check(
            "quickstart/20261123-020701-3fa2/latest",
            "quickstart/20261123-020701-3fa2",
            Which::Newest,
        );
        check("a/step-00000300", "a", Which::Step(300));
        check("a/20261123-020701-3fa2", "a/20261123-020701-3fa2", Which::Any);
    }
}
