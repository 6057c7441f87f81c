//! `Event -> terminal, files`. What was said, for whoever watches and whoever looks later.
//!
//! ```text
//!            ┌─▶ terminal                a bar or plain lines on stderr
//!            ├─▶ rank-0.log              the same lines with their time
//! Event ─────┼─▶ events.jsonl            everything
//!            ├─▶ metrics.csv             one row per recorded step and evaluation
//!            ├─▶ events.out.tfevents.*   the same for TensorBoard, if asked for
//!            └─▶ training_history.json   one number per epoch
//! ```
//!
//! The [`Recorder`] lives in the process of rank 0. The other ranks have a [`RankLog`] each.

mod environment;
mod events_file;
#[cfg(test)]
pub(crate) mod examples;
mod history_file;
mod line;
mod metrics;
mod rank_log;
mod stderr;
mod summary;
mod tensorboard;
mod terminal;
pub(crate) mod text;

use std::path::{Path, PathBuf};

use jiff::Timestamp;

pub use environment::{Environment, NAME as ENVIRONMENT};
pub use events_file::{Log, NAME as EVENTS, Stamped, read as read_events};
pub use history_file::{NAME as HISTORY, read as read_history, write as write_history};
pub use line::{Context, device_line, line};
pub(crate) use line::{quiet_line, restart};
pub use metrics::NAME as METRICS;
pub use rank_log::RankLog;
pub(crate) use stderr::say;
pub use terminal::Screen;

use crate::event::{Event, Finished, History};
use crate::files::{self, Appended, Lines};
use crate::plan::{RunFolders, Sink};
use crate::units::Rank;
pub(crate) use summary::summary;
use terminal::Terminal;

/// Name of the resolved experiment of a run, which can be run as it is.
pub const RESOLVED: &str = "resolved.toml";
/// Says in a run's folder what the run is: its folders and its plan.
pub const DESCRIPTION: &str = "run.json";

/// Why the record of a run could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be written or read.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// Written by a newer ddprun.
    #[error("`{}` has format {found}, and this ddprun reads formats up to {known}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest known one.
        known: u32,
    },
    /// A file that is not what its name says.
    #[error("`{}` is not a training history", path.display())]
    NotAHistory {
        /// The file.
        path: PathBuf,
        /// Where it differs.
        #[source]
        reason: serde_json::Error,
    },
    /// A value that has no written form.
    #[error("cannot write `{what}` as JSON")]
    Encode {
        /// Name of the file.
        what: &'static str,
        /// The value.
        #[source]
        reason: serde_json::Error,
    },
}

impl Error {
    /// Whether the file system is full.
    pub fn is_out_of_space(&self) -> bool {
        matches!(self, Self::Files(error) if error.is_out_of_space())
    }
}

/// What a [`Recorder`] needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Folders of the run; they exist.
    pub run: RunFolders,
    /// What to write beside the history.
    pub sinks: Vec<Sink>,
    /// How to write to the terminal.
    pub screen: Screen,
    /// Epochs before `resumed_from`, from the checkpoint.
    pub history: History,
    /// Step that the run continues from; 0 at a fresh start.
    pub resumed_from: u64,
}

/// Writes down what a run says.
pub struct Recorder {
    run: RunFolders,
    sinks: Vec<Sink>,
    history: History,
    last_step: u64,
    terminal: Terminal,
    log: RankLog,
    events: Option<Lines>,
    metrics: Option<Lines>,
    board: Option<Appended>,
}

impl Recorder {
    /// Opens the files of a run. Those of an earlier part of it are continued; what they say about steps
    /// after `resumed_from` is cut, except in the logs.
    ///
    /// # Errors
    ///
    /// A file cannot be opened or written.
    pub fn open(settings: Settings) -> Result<Self, Error> {
        let Settings { run, sinks, screen, history, resumed_from } = settings;
        let wanted = |sink: Sink, name: &str| sinks.contains(&sink).then(|| run.logs.join(name));
        let events = wanted(Sink::Jsonl, EVENTS).map(|path| Lines::open(&path)).transpose()?;
        let metrics = wanted(Sink::Csv, METRICS)
            .map(|path| metrics::open(&path, resumed_from))
            .transpose()?;
        let board = sinks
            .contains(&Sink::Tensorboard)
            .then(|| tensorboard::open(&run.logs, resumed_from, Timestamp::now()))
            .transpose()?;
        history_file::write(&run.logs.join(HISTORY), &history)?;
        let log = RankLog::open(&run.logs, Rank(0))?;
        let (last_step, terminal) = (resumed_from, Terminal::new(screen));
        Ok(Self { run, sinks, history, last_step, terminal, log, events, metrics, board })
    }

    /// Writes an event to everything that shows or keeps it.
    ///
    /// # Errors
    ///
    /// A file cannot be written. All others have the event nevertheless.
    pub fn record(&mut self, event: &Event) -> Result<(), Error> {
        // A checkpoint is said when it is on disk, some steps after its own.
        self.last_step = event.step().unwrap_or(0).max(self.last_step);
        let kept = [
            self.keep_history(event),
            self.keep_event(event),
            self.keep_row(event),
            self.keep_points(event),
        ];
        let shown = self.show(event);
        let synced = self.sync_after(event);
        kept.into_iter().chain([shown, synced]).collect()
    }

    /// Moves the bar to a step that is not recorded. Costs next to nothing.
    pub fn advance(&self, step_in_epoch: u64) {
        self.terminal.advance(step_in_epoch);
    }

    /// All epochs so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The files that grow with every event: they must be on disk before a checkpoint is, since a resumed run
    /// does not say again what was said up to it.
    pub fn growing(&self) -> Vec<PathBuf> {
        let lines = self.events.iter().chain(&self.metrics).map(Lines::path);
        lines.chain(self.board.iter().map(Appended::path)).map(Path::to_owned).collect()
    }

    fn keep_history(&mut self, event: &Event) -> Result<(), Error> {
        let Event::EpochDone(epoch) = event else { return Ok(()) };
        self.history.push(epoch);
        history_file::write(&self.run.logs.join(HISTORY), &self.history)
    }

    fn keep_event(&mut self, event: &Event) -> Result<(), Error> {
        let Some(events) = &mut self.events else { return Ok(()) };
        let stamped =
            Stamped { time: Timestamp::now(), step: self.last_step, event: event.clone() };
        events_file::write(events, &stamped)
    }

    fn keep_row(&mut self, event: &Event) -> Result<(), Error> {
        let (Some(metrics), Some(row)) = (&mut self.metrics, metrics::row(event)) else {
            return Ok(());
        };
        Ok(metrics.push(&row)?)
    }

    fn keep_points(&self, event: &Event) -> Result<(), Error> {
        let Some(board) = &self.board else { return Ok(()) };
        match tensorboard::record(event, Timestamp::now()) {
            Some(record) => Ok(board.append(&record)?),
            None => Ok(()),
        }
    }

    fn show(&mut self, event: &Event) -> Result<(), Error> {
        if let Some(text) = self.terminal.show(event) {
            self.log.say(&text)?;
        }
        if let Some(text) = quiet_line(event) {
            self.log.say(&text)?;
        }
        if let Event::Finished(finished) = event {
            let text = summary(finished, &self.places(finished));
            self.terminal.print(&text);
            self.log.say(&text)?;
        }
        Ok(())
    }

    /// The run is over: what was said of it must be on disk. During the run a checkpoint takes care of it.
    fn sync_after(&self, event: &Event) -> Result<(), Error> {
        if !matches!(event, Event::Finished(_)) {
            return Ok(());
        }
        let mut lines = self.events.iter().chain(&self.metrics);
        lines.try_for_each(Lines::sync)?;
        Ok(self.board.iter().try_for_each(Appended::sync)?)
    }

    /// What the run leaves behind. The curves are drawn after the last event.
    fn places(&self, finished: &Finished) -> summary::Places {
        let mut places = Vec::new();
        for name in ["best", "latest"] {
            let link = self.run.checkpoints.join(name);
            if link.is_dir() {
                places.push((name, link));
            }
        }
        let logs = |name: &str| self.run.logs.join(name);
        places.push(("history", logs(HISTORY)));
        if self.sinks.contains(&Sink::Curves) && finished.step > 0 {
            places.push(("curves", logs("curves.png")));
        }
        places.extend(self.metrics.iter().map(|_| ("metrics", logs(METRICS))));
        places.extend(self.events.iter().map(|_| ("events", logs(EVENTS))));
        places.extend(self.board.iter().map(|board| ("tensorboard", board.path().to_owned())));
        places
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn settings(folder: &Path, resumed_from: u64, history: History) -> Settings {
        let run = RunFolders {
            id: "r".into(),
            logs: folder.join("logs"),
            checkpoints: folder.join("checkpoints"),
        };
        files::create_folder(&run.logs).unwrap();
        let sinks = vec![Sink::Jsonl, Sink::Csv, Sink::Curves];
        Settings { run, sinks, screen: Screen::Silent, history, resumed_from }
    }

    fn say_epoch(recorder: &mut Recorder, epoch: u64) {
        for step in 20 * (epoch - 1) + 1..=(20 * epoch).min(50) {
            recorder.record(&Event::StepDone(examples::step_done(step))).unwrap();
        }
        let step = (20 * epoch).min(50);
        recorder.record(&Event::Evaluated(examples::evaluated(step))).unwrap();
        recorder.record(&Event::EpochDone(examples::epoch_done(epoch))).unwrap();
    }

    #[test]
    fn a_resumed_run_leaves_the_history_and_metrics_of_an_undisturbed_one() {
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut undisturbed =
            Recorder::open(settings(whole.path(), 0, History::default())).unwrap();
        (1..=3).for_each(|epoch| say_epoch(&mut undisturbed, epoch));

        let mut first = Recorder::open(settings(parts.path(), 0, History::default())).unwrap();
        say_epoch(&mut first, 1);
        let saved = first.history().clone();
        say_epoch(&mut first, 2);
        drop(first);
        let mut second = Recorder::open(settings(parts.path(), 20, saved)).unwrap();
        second.record(&Event::Started(examples::started(20))).unwrap();
        (2..=3).for_each(|epoch| say_epoch(&mut second, epoch));

        for name in [HISTORY, METRICS] {
            let read = |folder: &Path| fs::read_to_string(folder.join("logs").join(name)).unwrap();
            assert_eq!(read(parts.path()), read(whole.path()), "{name}");
        }
        assert_eq!(second.history().len(), 3);
        let log = read_events(&parts.path().join("logs").join(EVENTS)).unwrap();
        assert_eq!((log.events.len(), log.n_unreadable), (44 + 1 + 34, 0));
    }

    #[test]
    fn the_log_of_rank_0_holds_the_summary() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::open(settings(folder.path(), 0, History::default())).unwrap();
        recorder.record(&Event::Started(examples::started(0))).unwrap();
        recorder.record(&Event::Finished(examples::finished())).unwrap();
        let log = fs::read_to_string(folder.path().join("logs/rank-0.log")).unwrap();
        for words in ["Use device (DDP): cpu, rank 1/2", "best val/accuracy 72.50 %", "curves.png"]
        {
            assert!(log.contains(words), "{log}");
        }
        assert!(
            !log.contains("checkpoints/best"),
            "a link that does not exist is not named: {log}"
        );
    }

    #[test]
    fn a_sink_that_fails_is_named_and_the_others_have_the_event() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::open(settings(folder.path(), 0, History::default())).unwrap();
        recorder.metrics = Some(Lines::open(Path::new("/dev/full")).unwrap());
        let error = recorder.record(&Event::StepDone(examples::step_done(1))).unwrap_err();
        assert!(error.is_out_of_space(), "{error}");
        assert_eq!(error.to_string(), "cannot write `/dev/full`");
        let log = read_events(&folder.path().join("logs").join(EVENTS)).unwrap();
        assert_eq!(log.events.len(), 1);
    }
}
