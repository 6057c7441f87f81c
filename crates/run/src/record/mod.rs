//! `Event -> terminal, files`.
//!
//! ```text
//!            ┌─▶ terminal                a bar or plain lines on stderr
//!            ├─▶ rank-0.log              the same lines with their time
//! Event ─────┼─▶ events.jsonl            everything
//!            ├─▶ metrics.csv             one row per recorded step and evaluation
//!            ├─▶ events.out.tfevents.*   the same for TensorBoard, if asked for
//!            ├─▶ epochs.jsonl            one line per epoch
//!            └─▶ training_history.json   the same by columns, some seconds later
//! ```
//!
//! Growing files are written as events come, and synced before a checkpoint is complete and at the
//! end of the run. A resume cuts from them the steps that it repeats.
//!
//! The [`Recorder`] lives in the process of rank 0. The other ranks have a [`RankLog`] each.
//!
//! The events of a run can be read while it runs, and afterwards:
//! ```
//! use ddprun_train::event::Event;
//! use ddprun_run::record::{EVENTS, Jsonl, Sink, SinkStart, Stamped, read_events};
//!
//! let logs = tempfile::tempdir().unwrap();
//! let mut start = SinkStart { total_steps: 10, ..SinkStart::default() };
//! start.run.logs = logs.path().to_owned();
//! let mut sink = Jsonl::default().open(&start).unwrap();
//! let event = Event::Warned { message: "the disk is slow".to_owned() };
//! let time = "2026-11-23T12:00:00Z".parse().unwrap();
//! sink.record(&Stamped { time, step: 3, event }).unwrap();
//!
//! let log = read_events(&logs.path().join(EVENTS)).unwrap();
//! assert!(matches!(&log.events[0].event, Event::Warned { message } if message.contains("slow")));
//! ```

mod environment;
#[cfg(test)]
pub(crate) mod example_events;
mod results;
mod event_line;
mod sink;
mod run_json;
mod stderr;
mod stdout;
mod summary;
mod terminal;
pub mod text;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

pub use environment::{Environment, NAME as ENVIRONMENT, read as read_environment};
pub use event_line::{Context, device_line, line};
pub(crate) use event_line::{quiet_line, restart};
pub use results::{
    EPOCHS, HISTORY, read_epochs, read_history, read_test, write_history, write_test,
};
pub use run_json::{
    DATA, DESCRIPTION, DESCRIPTION_FORMAT, RESOLVED, SPLIT, is_run, newest_of, newest_start,
    of_start,
};
pub use sink::{
    Command, Csv, Curves, Delivery, EVENTS, Jsonl, Log, METRICS, Milestones, Mlflow, NamedSink,
    OpenSink, RunTime, Sink, SinkFamily, SinkStart, Sinks, Stamped, Tensorboard, Wandb,
    read_events, read_milestones, read_rank_stats,
};
pub use stderr::{canvas, takes_words};
pub use stdout::{
    JsonStream, answer_in_json, is_json, line as json_line, print_error, say_error, to_stdout,
};
pub use terminal::{Screen, progress_bar, screen, to_stderr};

use crate::event::{EpochDone, Event, Finished, History};
use crate::files::{self, LineFile};
use crate::plan::RunFolders;
use crate::units::Rank;
use crate::user_error::{ExitCode, UserError};
use results::HistoryWriter;
use sink::{QueuedSink, TIME_AT_THE_END};
pub(crate) use summary::summary;
use terminal::Terminal;
use text::escape;

/// A file has a format that this ddprun does not know yet.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{}` was written by a newer ddprun: it has format {found}, and this ddprun reads formats up to \
     {known}",
    path.display()
)]
pub struct NewerFormat {
    path: PathBuf,
    found: u64,
    known: u32,
}

impl NewerFormat {
    /// Refuses the format `found` in the file at `path` if it is newer than `known`. A file without
    /// one passes.
    pub(crate) fn check(path: &Path, found: Option<u64>, known: u32) -> Result<(), Self> {
        match found {
            Some(found) if found > u64::from(known) => {
                Err(Self { path: path.to_owned(), found, known })
            }
            _ => Ok(()),
        }
    }
}

/// Why the record of a run could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be written or read.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// A file of a newer ddprun.
    #[error(transparent)]
    Newer(#[from] NewerFormat),
    /// A file of another format.
    #[error("`{}` is not a training history", path.display())]
    NotAHistory {
        path: PathBuf,
        /// The first difference.
        #[source]
        reason: serde_json::Error,
    },
    /// The system has no thread left.
    #[error("cannot start the thread that writes `{what}`")]
    Thread {
        /// Name of the file.
        what: &'static str,
        #[source]
        reason: std::io::Error,
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

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Newer(_) => ExitCode::Refused,
            Self::Thread { .. } => ExitCode::Resource,
            _ => ExitCode::Storage,
        }
    }
}

impl Error {
    /// A sink of a user's program cannot do `action` ("write") with the file at `path`.
    pub fn io(action: &'static str, path: &Path, reason: std::io::Error) -> Self {
        Self::Files(files::Error::io(action, path)(reason))
    }

    /// True if the file system is full.
    pub fn is_out_of_space(&self) -> bool {
        matches!(self, Self::Files(error) if error.is_out_of_space())
    }
}

/// Settings of a [`Recorder`].
#[derive(Debug)]
pub struct Settings {
    /// The start of the run; its folders exist.
    pub start: SinkStart,
    /// Outputs beside the history.
    pub sinks: Vec<NamedSink>,
    pub screen: Screen,
    pub steps_per_epoch: u64,
}

/// Writes the events of a run to the terminal, the log and all sinks.
pub struct Recorder {
    run: RunFolders,
    last_step: u64,
    terminal: Terminal,
    log: RankLog,
    epochs: LineFile,
    history: HistoryWriter,
    sinks: Vec<RunningSink>,
}

/// A sink of this start.
enum RunningSink {
    Lossless(Box<dyn OpenSink>),
    BestEffort(QueuedSink),
}

impl RunningSink {
    fn start(named: NamedSink, start: &SinkStart) -> Result<Self, Error> {
        Ok(match named.sink.delivery() {
            Delivery::Lossless => Self::Lossless(named.sink.open(start)?),
            Delivery::BestEffort => Self::BestEffort(QueuedSink::start(named, start.clone())?),
        })
    }

    fn lossless(&self) -> Option<&dyn OpenSink> {
        match self {
            Self::Lossless(sink) => Some(sink.as_ref()),
            Self::BestEffort(_) => None,
        }
    }

    fn best_effort(&mut self) -> Option<&mut QueuedSink> {
        match self {
            Self::Lossless(_) => None,
            Self::BestEffort(sink) => Some(sink),
        }
    }

    fn record(&mut self, stamped: &Arc<Stamped>) -> Result<(), Error> {
        match self {
            Self::Lossless(sink) => sink.record(stamped),
            Self::BestEffort(sink) => {
                sink.push(stamped);
                Ok(())
            }
        }
    }

    fn summary_entry(&self, finished: &Finished) -> Option<(&'static str, PathBuf)> {
        match self {
            Self::Lossless(sink) => sink.summary_entry(finished),
            Self::BestEffort(sink) => sink.summary_entry(),
        }
    }
}

impl Recorder {
    /// Opens the files of a run. Those of earlier starts are continued; entries about steps after
    /// `resumed_from` are cut, except in the logs.
    pub fn open(settings: Settings) -> Result<Self, Error> {
        let Settings { start, sinks, screen, steps_per_epoch } = settings;
        let sinks = sinks.into_iter().map(|sink| RunningSink::start(sink, &start));
        let mut sinks = sinks.collect::<Result<Vec<_>, _>>()?;
        let SinkStart { run, resumed_from, unfinished, total_steps, .. } = start;
        let events = run.logs.join(EVENTS);
        let mut files = sinks.iter().filter_map(|sink| sink.lossless()?.file());
        if !files.any(|file| file == events) {
            sinks.push(RunningSink::Lossless(sink::rare_events(&events)?));
        }
        let mut done = epochs_until(&run.logs.join(EPOCHS), resumed_from)?;
        if resumed_from < total_steps {
            // It goes on, and is said when it is over.
            done.retain(|epoch| !is_cut_short(epoch, resumed_from, steps_per_epoch));
        }
        if unfinished.is_some_and(|unfinished| !unfinished.epoch_is_closed) {
            done.retain(|epoch| epoch.step < resumed_from);
        }
        let epochs = results::open_epochs(&run.logs.join(EPOCHS), &done)?;
        let history = HistoryWriter::start(run.logs.join(HISTORY), History::of(&done))?;
        let log = RankLog::open(&run.logs, Rank(0))?;
        let last_step = resumed_from;
        let terminal = Terminal::new(screen);
        Ok(Self { run, last_step, terminal, log, epochs, history, sinks })
    }

    /// Writes an event to all outputs.
    ///
    /// # Errors
    ///
    /// A file cannot be written. All other outputs have the event nevertheless.
    pub fn record(&mut self, event: &Event) -> Result<(), Error> {
        if matches!(event, Event::Finished(_)) {
            // What there is to say of its sinks is said before the run's last words.
            let stamped = self.stamped(event);
            return self.finish_sinks(Some(&stamped)).and(self.write(event));
        }
        let written = self.write(event);
        let warnings = self.best_effort().filter_map(QueuedSink::warning).collect();
        written.and(self.warn(warnings))
    }

    fn best_effort(&mut self) -> impl Iterator<Item = &mut QueuedSink> {
        self.sinks.iter_mut().filter_map(RunningSink::best_effort)
    }

    fn write(&mut self, event: &Event) -> Result<(), Error> {
        let stamped = self.stamped(event);
        let epoch = self.keep_epoch(event);
        let kept: Vec<_> = self.sinks.iter_mut().map(|sink| sink.record(&stamped)).collect();
        let shown = self.show(event);
        let synced = self.sync_after(event);
        [epoch].into_iter().chain(kept).chain([shown, synced]).collect()
    }

    fn stamped(&mut self, event: &Event) -> Arc<Stamped> {
        // A checkpoint is said when it is on disk, some steps after its own.
        self.last_step = event.step().unwrap_or(0).max(self.last_step);
        Arc::new(Stamped { time: Timestamp::now(), step: self.last_step, event: event.clone() })
    }

    fn warn(&mut self, warnings: Vec<String>) -> Result<(), Error> {
        warnings.into_iter().try_for_each(|message| self.write(&Event::Warned { message }))
    }

    /// Passes the last event to the sinks on threads of their own, gives them time for their
    /// queues, and warns of events that they lost.
    fn finish_sinks(&mut self, last: Option<&Arc<Stamped>>) -> Result<(), Error> {
        self.best_effort().for_each(|sink| sink.close(last));
        let deadline = Instant::now() + TIME_AT_THE_END;
        let mut warnings = Vec::new();
        for sink in self.best_effort() {
            let loss = sink.finish(deadline);
            warnings.extend(sink.warning().into_iter().chain(loss));
        }
        self.warn(warnings)
    }

    /// Moves the bar to a step that is not recorded. Costs next to nothing.
    pub fn advance(&mut self, step: u64, loss: f64) {
        self.terminal.advance(step, loss);
    }

    /// Shows the progress of an evaluation in place of the bar.
    pub fn evaluating(&mut self, what: &str, done: u64, batches: u64) {
        self.terminal.evaluating(what, done, batches);
    }

    /// The files that grow with every event. They must be on disk before a checkpoint is, since a
    /// resumed run does not repeat the events up to it.
    pub fn growing(&self) -> Vec<PathBuf> {
        let sinks = self.sinks.iter().filter_map(|sink| sink.lossless()?.file());
        [self.epochs.path()].into_iter().chain(sinks).map(Path::to_owned).collect()
    }

    fn keep_epoch(&mut self, event: &Event) -> Result<(), Error> {
        let Event::EpochDone(epoch) = event else { return Ok(()) };
        results::write_epoch(&mut self.epochs, epoch)?;
        self.history.push(epoch)
    }

    fn show(&mut self, event: &Event) -> Result<(), Error> {
        if let Some(text) = self.terminal.show(event) {
            self.log.say(&text)?;
        }
        if let Some(text) = quiet_line(event) {
            self.log.say(&text)?;
        }
        if let Event::Finished(finished) = event {
            let text = summary(finished, &RunFolders::word(&self.run.logs), &self.places(finished));
            self.terminal.print(&text);
            self.log.say(&text)?;
        }
        Ok(())
    }

    /// Syncs all files at the end of the run. During the run, a checkpoint does so.
    fn sync_after(&mut self, event: &Event) -> Result<(), Error> {
        if !matches!(event, Event::Finished(_)) {
            return Ok(());
        }
        self.history.finish()?;
        self.epochs.sync()?;
        self.sinks.iter().filter_map(RunningSink::lossless).try_for_each(OpenSink::sync)
    }

    /// Files and folders that the run leaves behind. The curves are drawn after the last event.
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
        places.extend(self.sinks.iter().filter_map(|sink| sink.summary_entry(finished)));
        places
    }
}

impl Drop for Recorder {
    /// Finishes the sinks of a start that ends without its last event: the run goes on elsewhere,
    /// or has failed.
    fn drop(&mut self) {
        drop(self.finish_sinks(None));
    }
}

/// True if an epoch was recorded at `step`, before its last step, because the run ended there.
fn is_cut_short(epoch: &EpochDone, step: u64, steps_per_epoch: u64) -> bool {
    epoch.step == step && !step.is_multiple_of(steps_per_epoch.max(1))
}

/// Reads the epochs that had ended by `step`.
fn epochs_until(path: &Path, step: u64) -> Result<Vec<EpochDone>, Error> {
    let mut epochs = read_epochs(path)?.unwrap_or_default();
    epochs.retain(|epoch| epoch.step <= step);
    Ok(epochs)
}

/// `rank-N.log`: what one rank logs, each line with its time. Only rank 0 also writes to the
/// terminal.
#[derive(Debug)]
pub struct RankLog(LineFile);

impl RankLog {
    /// Opens `rank-N.log` in the run's folder; an earlier process's lines stay.
    pub fn open(folder: &Path, rank: Rank) -> Result<Self, Error> {
        Ok(Self(LineFile::open(&Self::path(folder, rank))?))
    }

    /// Path of the log of `rank`.
    pub fn path(folder: &Path, rank: Rank) -> PathBuf {
        folder.join(format!("rank-{rank}.log"))
    }

    /// Adds each line of `text` with the present time.
    pub fn say(&mut self, text: &str) -> Result<(), Error> {
        let now = Timestamp::now();
        let stamped: Vec<String> =
            escape(text).lines().map(|line| format!("{now:.3}  {line}")).collect();
        Ok(self.0.push(&stamped.join("\n"))?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn settings(folder: &Path, resumed_from: u64) -> Settings {
        let run = RunFolders {
            id: "r".into(),
            logs: folder.join("logs"),
            checkpoints: folder.join("checkpoints"),
        };
        files::create_folder(&run.logs).unwrap();
        let sinks: [Box<dyn Sink>; 3] = [Box::new(Jsonl {}), Box::new(Csv {}), Box::new(Curves {})];
        Settings {
            start: SinkStart { run, resumed_from, total_steps: 50, ..SinkStart::default() },
            sinks: sinks.into_iter().map(|sink| NamedSink { name: String::new(), sink }).collect(),
            screen: Screen::Silent,
            steps_per_epoch: 20,
        }
    }

    fn say_epoch(recorder: &mut Recorder, epoch: u64) {
        for step in 20 * (epoch - 1) + 1..=(20 * epoch).min(50) {
            recorder.record(&Event::StepDone(example_events::step_done(step))).unwrap();
        }
        let step = (20 * epoch).min(50);
        recorder.record(&Event::Evaluated(example_events::evaluated(step))).unwrap();
        recorder.record(&Event::EpochDone(example_events::epoch_done(epoch))).unwrap();
    }

    #[test]
    fn a_resumed_run_leaves_the_history_and_metrics_of_an_undisturbed_one() {
        let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut undisturbed = Recorder::open(settings(whole.path(), 0)).unwrap();
        (1..=3).for_each(|epoch| say_epoch(&mut undisturbed, epoch));

        let mut first = Recorder::open(settings(parts.path(), 0)).unwrap();
        say_epoch(&mut first, 1);
        say_epoch(&mut first, 2);
        drop(first);
        let mut second = Recorder::open(settings(parts.path(), 20)).unwrap();
        second.record(&Event::Started(example_events::started(20))).unwrap();
        (2..=3).for_each(|epoch| say_epoch(&mut second, epoch));
        drop((undisturbed, second));

        for name in [HISTORY, EPOCHS, METRICS] {
            let read = |folder: &Path| fs::read_to_string(folder.join("logs").join(name)).unwrap();
            assert_eq!(read(parts.path()), read(whole.path()), "{name}");
        }
        assert_eq!(read_history(&parts.path().join("logs").join(HISTORY)).unwrap().len(), 3);
        let log = read_events(&parts.path().join("logs").join(EVENTS)).unwrap();
        assert_eq!((log.events.len(), log.n_unreadable), (44 + 1 + 34, 0));
    }

    #[test]
    fn what_a_checkpoint_must_not_be_without_has_every_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::open(settings(folder.path(), 0)).unwrap();
        say_epoch(&mut recorder, 1);
        let logs = folder.path().join("logs");
        let growing = [EPOCHS, EVENTS, METRICS].map(|name| logs.join(name));
        assert_eq!(recorder.growing(), growing);
        // As a killed process leaves it.
        assert_eq!(read_epochs(&growing[0]).unwrap().unwrap(), [example_events::epoch_done(1)]);
    }

    #[test]
    fn the_log_of_rank_0_holds_the_summary() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::open(settings(folder.path(), 0)).unwrap();
        recorder.record(&Event::Started(example_events::started(0))).unwrap();
        recorder.record(&Event::Finished(example_events::finished())).unwrap();
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

    struct Full(PathBuf);

    impl OpenSink for Full {
        fn record(&mut self, _: &Stamped) -> Result<(), Error> {
            let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
            Err(files::Error::io("write", &self.0)(full).into())
        }

        fn summary_entry(&self, _: &Finished) -> Option<(&'static str, PathBuf)> {
            None
        }
    }

    #[test]
    fn a_sink_that_fails_is_named_and_the_others_have_the_event() {
        let folder = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::open(settings(folder.path(), 0)).unwrap();
        recorder.sinks.insert(0, RunningSink::Lossless(Box::new(Full("log".into()))));
        let error = recorder.record(&Event::StepDone(example_events::step_done(1))).unwrap_err();
        assert!(error.is_out_of_space(), "{error}");
        assert_eq!(error.to_string(), "cannot write `log`");
        let log = read_events(&folder.path().join("logs").join(EVENTS)).unwrap();
        assert_eq!(log.events.len(), 1);
    }

    #[test]
    fn every_line_of_a_rank_has_its_time() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = RankLog::open(folder.path(), Rank(3)).unwrap();
        log.say("Use device (DDP): cpu, rank 3/4").unwrap();
        log.say("two\nlines\x07").unwrap();
        let text = std::fs::read_to_string(folder.path().join("rank-3.log")).unwrap();
        let words: Vec<(Timestamp, &str)> = text
            .lines()
            .map(|line| line.split_once("  ").unwrap())
            .map(|(time, words)| (time.parse().unwrap(), words))
            .collect();
        let said: Vec<&str> = words.iter().map(|(_, words)| *words).collect();
        assert_eq!(said, ["Use device (DDP): cpu, rank 3/4", "two", "lines\\u{7}"]);
    }
}
