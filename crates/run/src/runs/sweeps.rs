//! Summary of a sweep, from its folder.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::Serialize;

use super::{Error, State, Summary, other_runs, summary, trials};
use crate::plan::Mode;
use crate::sweep::{self, Status, Trial};

/// A sweep as its files show it. The names of the fields are those of `ddprun ls --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SweepSummary {
    pub name: String,
    #[serde(serialize_with = "super::as_text")]
    pub folder: PathBuf,
    pub state: State,
    /// The process that runs it.
    pub reason: Option<String>,
    /// Number of trials that have ended.
    pub done: usize,
    /// Number of trials requested.
    pub trials: usize,
    /// The metric that ranks its trials.
    pub monitor: String,
    /// Direction in which the metric improves.
    pub mode: Mode,
    /// The best value of that metric.
    pub best: Option<f64>,
    /// The trial that reached it.
    pub best_trial: Option<String>,
    pub started: Timestamp,
}

/// Reads the sweep in `folder`.
pub fn sweep_summary(folder: &Path) -> Result<SweepSummary, Error> {
    let Status { story, holder, .. } = sweep::status(folder)?;
    let subject = story.subject;
    let is_open = |trial: &&Trial| trial.state == sweep::State::Running;
    let done = story.trials.len() - story.trials.iter().filter(is_open).count();
    let state = match &holder {
        Some(_) => State::Running,
        None if done >= subject.trials => State::Finished,
        None => State::Stopped,
    };
    let best = sweep::best(&story.trials, subject.goal);
    Ok(SweepSummary {
        name: subject.name,
        folder: folder.to_owned(),
        state,
        reason: holder,
        done,
        // An earlier version kept a number that was asked for when there were more.
        trials: subject.trials.max(story.trials.len()),
        monitor: subject.metric,
        mode: subject.goal,
        best: best.and_then(|trial| trial.value(subject.goal)),
        best_trial: best.map(Trial::id),
        started: story.opened,
    })
}

/// Reads the runs in the folder of a sweep: trials, each from the journal and its own files, and
/// runs of an experiment with the same name.
pub(super) fn trial_summaries(folder: &Path) -> Vec<(PathBuf, Result<Summary, Error>)> {
    let story = sweep::read(folder).ok().flatten();
    let known = story.as_ref().map_or(&[][..], |story| &story.trials);
    let name = story.as_ref().map(|story| story.subject.name.clone());
    let read = |path: PathBuf| {
        let trial = known.iter().find(|trial| path.ends_with(trial.id()));
        let summary = summary(&path).map(|mut run| {
            if sweep::is_trial(&path) {
                run.sweep.clone_from(&name);
            }
            // Only the journal knows that a run was pruned.
            let is_pruned = trial.is_some_and(|trial| trial.state == sweep::State::Pruned);
            if is_pruned && run.state != State::Running {
                (run.state, run.reason) = (State::Pruned, None);
            }
            run
        });
        (path, summary)
    };
    trials(folder).into_iter().chain(other_runs(folder)).map(read).collect()
}
