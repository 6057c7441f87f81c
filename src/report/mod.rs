//! `records -> curves, tables`. Reads what `record` wrote, also of a run that is still going or was killed.

pub(crate) mod axis;
pub mod curves;
mod find;
pub(crate) mod panel;
pub(crate) mod picture;
mod story;
mod table;

use std::path::{Path, PathBuf};

pub(crate) use find::DESCRIPTION;
pub use find::find_run;
pub use story::story;
pub use table::table;

use crate::event::History;
use crate::files;
use crate::plan::{CheckpointPlan, Mode};
use crate::record::{self, EVENTS, HISTORY, Log};

/// Why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the run wrote cannot be read.
    #[error(transparent)]
    Record(#[from] record::Error),
    /// A picture could not be written.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// A picture could not be drawn.
    #[error("cannot draw `{what}`")]
    Draw {
        /// Name of the picture.
        what: &'static str,
        /// What the drawing library says.
        #[source]
        reason: Box<dyn std::error::Error + Send + Sync>,
    },
    /// There is no such run.
    #[error("there is no run `{run}` under `{}`", logs.display())]
    NoRun {
        /// What was asked for.
        run: String,
        /// Folder of all runs' logs.
        logs: PathBuf,
    },
    /// There is no run at all.
    #[error("there is no run under `{}`", logs.display())]
    NoRuns {
        /// Folder of all runs' logs.
        logs: PathBuf,
    },
}

/// What a run left in its folder.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Its finished epochs.
    pub history: History,
    /// Its events; empty without the sink `jsonl`.
    pub log: Log,
}

/// Reads the records of the run in `folder`.
///
/// # Errors
///
/// There is no history, or a file cannot be understood.
pub fn read(folder: &Path) -> Result<Records, Error> {
    let history = record::read_history(&folder.join(HISTORY))?;
    let events = folder.join(EVENTS);
    let log = if events.exists() { record::read_events(&events)? } else { Log::default() };
    Ok(Records { history, log })
}

/// Draws the curves of the run in `folder` anew and gives its table and story as text. `plan` says which
/// metric ranks its checkpoints.
///
/// # Errors
///
/// The records cannot be read, or the pictures cannot be written.
pub fn write(folder: &Path, plan: &CheckpointPlan) -> Result<String, Error> {
    let records = read(folder)?;
    let title = story::title(&records.log).unwrap_or_else(|| folder.display().to_string());
    let best = best_epoch(&records.history, plan);
    curves::write(&records.history, best, folder, &title)?;
    let parts = [story(&records.log), table(&records.history, best)];
    Ok(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n"))
}

/// The epoch, counted from 1, with the best value of the metric that ranks checkpoints; the first of
/// equals. `None` if it was never measured at the end of an epoch.
pub fn best_epoch(history: &History, plan: &CheckpointPlan) -> Option<usize> {
    let values = match plan.monitor.as_str() {
        "val/accuracy" => &history.val_acc,
        "train/accuracy" => &history.train_acc,
        "train/loss" => &history.train_loss,
        _ => &history.val_loss,
    };
    let sign = if plan.mode == Mode::Min { 1.0 } else { -1.0 };
    let known = values.iter().enumerate().filter_map(|(i, value)| Some((i, sign * (*value)?)));
    known.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(index, _)| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::plan::{Cadence, RunFolders, Sink};
    use crate::record::{Recorder, Screen, Settings, examples};

    fn ranked_by(monitor: &str, mode: Mode) -> CheckpointPlan {
        CheckpointPlan {
            dir: "checkpoints".into(),
            every: Cadence::Epochs(1),
            keep_last: 1,
            keep_best: 1,
            monitor: monitor.into(),
            mode,
        }
    }

    #[test]
    fn the_best_epoch_is_that_of_the_monitored_metric_and_the_first_of_equals() {
        let history = History {
            val_acc: vec![Some(50.0), None, Some(70.0), Some(70.0)],
            val_loss: vec![Some(0.4), Some(0.1), Some(0.3), Some(0.2)],
            ..History::default()
        };
        assert_eq!(best_epoch(&history, &ranked_by("val/accuracy", Mode::Max)), Some(3));
        assert_eq!(best_epoch(&history, &ranked_by("val/loss", Mode::Min)), Some(2));
        assert_eq!(best_epoch(&history, &ranked_by("train/loss", Mode::Min)), None);
    }

    #[test]
    fn a_recorded_run_is_reported_from_its_folder_alone() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolders {
            id: "r".into(),
            logs: folder.path().to_owned(),
            checkpoints: folder.path().join("none"),
        };
        let settings = Settings {
            run,
            sinks: vec![Sink::Jsonl],
            screen: Screen::Silent,
            history: History::default(),
            resumed_from: 0,
        };
        let mut recorder = Recorder::open(settings).unwrap();
        recorder.record(&Event::Started(examples::started(0))).unwrap();
        for epoch in 1..=3 {
            recorder.record(&Event::EpochDone(examples::epoch_done(epoch))).unwrap();
        }
        recorder.record(&Event::Finished(examples::finished())).unwrap();
        drop(recorder);

        let text = write(folder.path(), &ranked_by("val/loss", Mode::Min)).unwrap();
        assert!(text.starts_with("shapes  20261120-132556-3fa2"), "{text}");
        assert!(text.contains("completed after step 50"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("72.50")).count(), 4, "{text}");
        for name in ["curves.png", "curves.svg"] {
            assert!(folder.path().join(name).metadata().unwrap().len() > 5_000, "{name}");
        }
    }

    #[test]
    fn a_folder_without_a_run_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let plan = ranked_by("val/loss", Mode::Min);
        let message = write(folder.path(), &plan).unwrap_err().to_string();
        assert!(message.starts_with("cannot read `"), "{message}");
        assert!(message.contains(HISTORY), "{message}");
    }
}
