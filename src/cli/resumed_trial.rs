//! A run that is to be resumed, and is a trial of a sweep: what would make it another trial than
//! those that it is ranked with is refused.

use std::path::{Path, PathBuf};

use crate::cli::{Refusal, to_stderr};
use crate::launch::exit_code as exit;
use crate::plan::RunFolders;
use crate::record::{RESOLVED, newest_of};
use crate::sweep::{self, State, Trial};

/// Refuses to resume a trial that its sweep has pruned, or one with these `changes`.
pub(crate) fn check(run: &RunFolders, changes: &[String]) -> Result<(), Refusal> {
    let Some((folder, trial)) = trial_of(&run.logs)? else { return Ok(()) };
    let (number, folder) = (trial.number, folder.display());
    if trial.state == State::Pruned {
        return Err(pruned(run, &format!("trial {number} was pruned by the sweep `{folder}`")));
    }
    if !changes.is_empty() {
        return Err(changed(
            run,
            &format!("trial {number} is ranked with the others of the sweep `{folder}`"),
            changes,
        ));
    }
    if trial.state == State::Running {
        to_stderr(&format!(
            "note: this is trial {number} of the sweep `{folder}`, whose command resumes it, too"
        ));
    }
    Ok(())
}

/// The sweep's folder and the trial whose records are in `logs`, if it is one.
fn trial_of(logs: &Path) -> Result<Option<(PathBuf, Trial)>, Refusal> {
    let Some(folder) = logs.parent() else { return Ok(None) };
    let story =
        sweep::read(folder).map_err(|error| Refusal::of(exit::CHECKPOINT, &error, error.help()))?;
    let trials = story.map(|story| story.trials).unwrap_or_default();
    let trial = trials.into_iter().find(|trial| logs.ends_with(trial.id()));
    Ok(trial.map(|trial| (folder.to_owned(), trial)))
}

fn pruned(run: &RunFolders, what: &str) -> Refusal {
    let gone = if run.checkpoints.exists() { "" } else { ", and its checkpoints were removed" };
    let page = format!(
        "error: {what}{gone}\n  do: train a run of its own with its settings: `{}`",
        own_run(run)
    );
    Refusal::new(exit::REFUSED, page)
}

fn changed(run: &RunFolders, what: &str, changes: &[String]) -> Refusal {
    let (changes, checkpoints) = (changes.join(" "), run.checkpoints.display());
    let page = format!(
        "error: {what}, and would not be comparable with `{changes}`\n  do: omit that, or train a \
         run of its own from its weights: `{} model.pretrained={checkpoints}/latest`",
        own_run(run)
    );
    Refusal::new(exit::REFUSED, page)
}

/// The command that trains the trial's experiment outside of the sweep.
fn own_run(run: &RunFolders) -> String {
    format!("ddprun {} experiment.name=NAME", newest_of(&run.logs, RESOLVED).display())
}
