//! `training_history.json`: [`History`] in the shape, order and indentation of Python's
//! `json.dump(history, file, indent=4)`, which plotting scripts read.
//!
//! The file holds all epochs, so each write costs more than the one before. A thread of its own
//! writes it, seldom enough to be cheap however long the run is; what must not be lost is in
//! `epochs.jsonl`.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};

use super::Error;
use crate::event::{EpochDone, History};
use crate::files;

/// Name of the file in the run's folder.
pub const NAME: &str = "training_history.json";

/// Reads the history of a run.
pub fn read(path: &Path) -> Result<History, Error> {
    let bytes = files::read(path).map_err(files::Error::io("read", path))?;
    serde_json::from_slice(&bytes)
        .map_err(|reason| Error::NotAHistory { path: path.to_owned(), reason })
}

/// Replaces the history of a run.
///
/// # Errors
///
/// The file cannot be written; the old one is then unchanged.
pub fn write(path: &Path, history: &History) -> Result<(), Error> {
    let bytes = encode(history).map_err(|reason| Error::Encode { what: NAME, reason })?;
    Ok(files::write_atomic(path, &bytes)?)
}

/// The shortest pause between two writes.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// Pauses are this many times as long as a write took.
const WRITE_TIME_FACTOR: u32 = 50;

/// Keeps the file up to date. What it was given is in the file when it is dropped.
pub(crate) struct HistoryWriter {
    epochs: Option<Sender<EpochDone>>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl HistoryWriter {
    /// Writes `history` and starts the thread.
    pub(crate) fn start(path: PathBuf, history: History) -> Result<Self, Error> {
        write(&path, &history)?;
        let (epochs, told) = channel();
        let thread = std::thread::Builder::new().name("history".into());
        let thread = thread
            .spawn(move || keep(&path, history, &told))
            .map_err(|reason| Error::Thread { what: NAME, reason })?;
        Ok(Self { epochs: Some(epochs), thread: Some(thread) })
    }

    /// Adds an epoch, which will be in the file some seconds later.
    pub(crate) fn push(&mut self, epoch: &EpochDone) -> Result<(), Error> {
        match &self.epochs {
            Some(epochs) if epochs.send(epoch.clone()).is_ok() => Ok(()),
            // The thread has failed, and says how.
            _ => self.finish(),
        }
    }

    /// Waits until all epochs are in the file, on disk.
    pub(crate) fn finish(&mut self) -> Result<(), Error> {
        self.epochs = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for HistoryWriter {
    fn drop(&mut self) {
        self.epochs = None;
        // A run that ends without a last word has a greater problem than this file, which `report`
        // makes again.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Writes what it is told, not too often, until its sender is gone.
fn keep(path: &Path, mut history: History, told: &Receiver<EpochDone>) -> Result<(), Error> {
    let mut due = Instant::now();
    let mut is_behind = false;
    loop {
        let heard = if is_behind {
            told.recv_timeout(due.saturating_duration_since(Instant::now()))
        } else {
            told.recv().map_err(RecvTimeoutError::from)
        };
        match heard {
            Ok(epoch) => {
                history.push(&epoch);
                is_behind = true;
            }
            Err(RecvTimeoutError::Timeout) => {
                let begun = Instant::now();
                write(path, &history)?;
                due = Instant::now() + pause_after(begun.elapsed());
                is_behind = false;
            }
            Err(RecvTimeoutError::Disconnected) if is_behind => return write(path, &history),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// The pause after a write that took this long.
fn pause_after(write: Duration) -> Duration {
    (WRITE_TIME_FACTOR * write).max(MIN_WRITE_INTERVAL)
}

fn encode(history: &History) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = Vec::new();
    let format = PrettyFormatter::with_indent(b"    ");
    history.serialize(&mut Serializer::with_formatter(&mut bytes, format))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::record::example_events;

    #[test]
    fn the_shape_is_that_of_python_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let mut history = History::default();
        history.push(&example_events::epoch_done(1));
        history.push(&crate::event::EpochDone { val_loss: None, ..example_events::epoch_done(2) });
        write(&path, &history).unwrap();
        insta::assert_snapshot!(fs::read_to_string(&path).unwrap(), @r#"
        {
            "train_loss": [
                0.8,
                0.6
            ],
            "train_acc": [
                60.0,
                70.0
            ],
            "val_loss": [
                0.55,
                null
            ],
            "val_acc": [
                72.5,
                72.5
            ],
            "learning_rate": [
                0.05,
                0.05
            ]
        }
        "#);
        assert_eq!(read(&path).unwrap(), history);
    }

    #[test]
    fn epochs_are_written_seldom_and_all_of_them_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let mut keeper = HistoryWriter::start(path.clone(), History::default()).unwrap();
        for epoch in 1..=1000 {
            keeper.push(&example_events::epoch_done(epoch)).unwrap();
        }
        keeper.finish().unwrap();
        assert_eq!(read(&path).unwrap().len(), 1000);
        keeper.finish().unwrap();
        let dropped = HistoryWriter::start(path.clone(), History::default());
        dropped.unwrap().push(&example_events::epoch_done(1)).unwrap();
        assert_eq!(read(&path).unwrap().len(), 1);
        assert_eq!(pause_after(Duration::from_millis(3)), MIN_WRITE_INTERVAL);
        assert_eq!(pause_after(Duration::from_secs(1)), Duration::from_secs(50));
    }

    #[test]
    fn a_write_that_fails_is_told_at_the_latest_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run").join(NAME);
        files::create_folder(path.parent().unwrap()).unwrap();
        let mut keeper = HistoryWriter::start(path.clone(), History::default()).unwrap();
        files::remove_folder(path.parent().unwrap()).unwrap();
        keeper.push(&example_events::epoch_done(1)).unwrap();
        let message = keeper.finish().unwrap_err().to_string();
        assert!(message.starts_with("cannot create `"), "{message}");
    }

    #[test]
    fn another_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        files::write_atomic(&path, b"{\"train_loss\": []}").unwrap();
        let message = read(&path).unwrap_err().to_string();
        assert_eq!(message, format!("`{}` is not a training history", path.display()));
    }
}
