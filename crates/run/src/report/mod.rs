//! Curves and tables from the files of `record`, also of a run that is still running or was killed.

pub(crate) mod axis;
pub(crate) mod canvas;
pub mod confusion;
mod curves;
mod outcome;
pub mod overlay;
pub(crate) mod panel;
pub(crate) mod picture;
mod progress;
mod incidents;
mod table;

use std::path::Path;

pub(crate) use incidents::story;
pub(crate) use outcome::Ending;
pub use outcome::{OutcomeFiles, last_end, last_start};
pub use progress::{Progress, Unit};

use crate::event::{EpochDone, History};
use crate::files;
use crate::plan::CheckpointPlan;
use crate::record::{self, EPOCHS, EVENTS, HISTORY, Log};
use crate::user_error::{ExitCode, UserError};

/// Why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A record of the run cannot be read.
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
        #[source]
        reason: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Record(error) => error.exit_code(),
            _ => ExitCode::Storage,
        }
    }
}

/// The records in a run's folder.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Finished epochs.
    pub epochs: Vec<EpochDone>,
    /// Events; empty if there is no `events.jsonl`.
    pub log: Log,
    pub traces: OutcomeFiles,
}

impl Records {
    /// The numbers of table and curves.
    pub(crate) fn progress(&self) -> Progress {
        Progress::of(&self.epochs, &self.log.effective())
    }
}

/// Reads the records of the run in `folder`. Missing files, as of a run that failed at its start,
/// give empty records.
pub(crate) fn read(folder: &Path) -> Result<Records, Error> {
    with_log(folder, log_of(folder, record::read_events)?)
}

/// Like `read`, but with only the last recorded step before each other event and at the end.
pub fn read_milestones(folder: &Path) -> Result<Records, Error> {
    with_log(folder, log_of(folder, record::read_milestones)?)
}

fn log_of(
    folder: &Path,
    read: impl Fn(&Path) -> Result<Log, record::Error>,
) -> Result<Log, record::Error> {
    let events = folder.join(EVENTS);
    if events.exists() { read(&events) } else { Ok(Log::default()) }
}

/// Like `read`, with events that were read before.
pub fn with_log(folder: &Path, log: Log) -> Result<Records, Error> {
    let epochs = record::read_epochs(&folder.join(EPOCHS))?.unwrap_or_default();
    let traces = OutcomeFiles::read(folder, &log.events);
    Ok(Records { epochs, log, traces })
}

/// A run in words.
pub struct Report {
    /// The story and the table.
    pub text: String,
    /// Why the files could not be updated; the text does not need them.
    pub unwritten: Option<Error>,
}

/// Redraws the curves of the run in `folder`, updates `training_history.json`, which a killed run
/// leaves some seconds old, and returns the story and the table as text. `plan` names the metric
/// that ranks checkpoints.
pub fn write(folder: &Path, plan: &CheckpointPlan) -> Result<Report, Error> {
    let records = read(folder)?;
    // Before the pictures, which take so long that a run may go on and end meanwhile. One that goes
    // on writes its history itself.
    let is_over = records.traces.holder.is_none() && files::lock_holder(folder).is_none();
    let completed = if is_over { complete_history(folder, &records) } else { Ok(()) };
    let drawn = draw(folder, &records, plan);
    let progress = records.progress();
    let parts = [story(&records), table::table(&progress, progress.best(plan))];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    Ok(Report { text: parts.join("\n"), unwritten: drawn.and(completed).err() })
}

/// Draws the curves of a run into its `folder`, titled with its name and id. A run without a
/// finished epoch or step has none.
pub fn draw(folder: &Path, records: &Records, plan: &CheckpointPlan) -> Result<(), Error> {
    let progress = records.progress();
    if progress.is_empty() {
        return Ok(());
    }
    let title = incidents::title(&records.log).unwrap_or_else(|| folder.display().to_string());
    curves::write(&progress, progress.best(plan), folder, &title)
}

/// Updates `training_history.json` of a run that is over.
pub(crate) fn complete_history(folder: &Path, records: &Records) -> Result<(), Error> {
    let history = History::of(&records.epochs);
    let path = folder.join(HISTORY);
    if folder.join(EPOCHS).exists() && record::read_history(&path).ok().as_ref() != Some(&history) {
        record::write_history(&path, &history)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use crate::plan::{Mode, RunFolders};
    use crate::record::{Jsonl, NamedSink, Recorder, Screen, Settings, SinkStart, example_events};
    use crate::report::progress::tests::ranked_by;

    #[test]
    fn a_recorded_run_is_reported_from_its_folder_alone() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolders {
            id: "r".into(),
            logs: folder.path().to_owned(),
            checkpoints: folder.path().join("none"),
        };
        let settings = Settings {
            start: SinkStart { run, total_steps: 50, ..SinkStart::default() },
            sinks: vec![NamedSink { name: "jsonl".into(), sink: Box::new(Jsonl {}) }],
            screen: Screen::Silent,
            steps_per_epoch: 20,
        };
        let mut recorder = Recorder::open(settings).unwrap();
        recorder.record(&Event::Started(example_events::started(0))).unwrap();
        for epoch in 1..=3 {
            recorder.record(&Event::EpochDone(example_events::epoch_done(epoch))).unwrap();
        }
        recorder.record(&Event::Finished(example_events::finished())).unwrap();
        drop(recorder);
        let history = folder.path().join(HISTORY);
        let whole = std::fs::read(&history).unwrap();
        // As a killed run leaves it.
        record::write_history(&history, &History::default()).unwrap();

        let Report { text, unwritten } =
            write(folder.path(), &ranked_by("val/loss", Mode::Min)).unwrap();
        assert!(unwritten.is_none(), "{unwritten:?}");
        assert!(text.starts_with("shapes  20261120-132556-3fa2"), "{text}");
        assert!(text.contains("completed after step 50"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("72.50")).count(), 4, "{text}");
        for name in ["curves.png", "curves.svg"] {
            assert!(folder.path().join(name).metadata().unwrap().len() > 5_000, "{name}");
        }
        assert!(std::fs::read(&history).unwrap() == whole, "the history is up to date");

        files::remove_file(&folder.path().join("curves.png")).unwrap();
        files::create_folder(&folder.path().join("curves.png/in-the-way")).unwrap();
        let again = write(folder.path(), &ranked_by("val/loss", Mode::Min)).unwrap();
        assert!(again.text == text && again.unwritten.is_some(), "the text needs no picture");
    }

    #[test]
    fn a_run_that_failed_at_its_start_has_a_report() {
        let folder = tempfile::tempdir().unwrap();
        let text = write(folder.path(), &ranked_by("val/loss", Mode::Min)).unwrap().text;
        assert!(text.ends_with("\nkilled before its first step, or events were not recorded\n"));
        assert!(
            !folder.path().join("curves.png").exists() && !folder.path().join(HISTORY).exists()
        );
    }
}
