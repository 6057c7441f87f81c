//! Files of a run's results. `epochs.jsonl`: one line per finished epoch, appended when the epoch
//! ends; after a resume, the lines of the repeated epochs are cut, so that the file ends as that of
//! an undisturbed run. `training_history.json`: the same by columns, made from it.
//! `test_metrics.json`: the result of the test and the checkpoint that it was made with.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::ser::{PrettyFormatter, Serializer};
use serde_json::{Map, Value};

use super::{Error, NewerFormat};
use crate::event::{EpochDone, Evaluated, History};
use crate::files::{self, LineFile};

/// Name of the file of epochs in the run's folder.
pub const EPOCHS: &str = "epochs.jsonl";

/// Version of a line of `epochs.jsonl`.
const EPOCHS_FORMAT: u32 = 1;

/// The epochs in the file, oldest first; `None` if there is no such file. A line that a killed
/// process cut short is passed over.
pub fn read_epochs(path: &Path) -> Result<Option<Vec<EpochDone>>, Error> {
    let bytes = match files::read(path) {
        Err(reason) if reason.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(files::Error::io("read", path))?,
    };
    let mut epochs = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(object) = serde_json::from_slice::<Map<String, Value>>(line) else { continue };
        let Some(format) = object.get("format").and_then(Value::as_u64) else { continue };
        NewerFormat::check(path, Some(format), EPOCHS_FORMAT)?;
        epochs.extend(serde_json::from_value::<EpochDone>(Value::Object(object)));
    }
    Ok(Some(epochs))
}

/// Opens the file with these epochs and no others.
pub(crate) fn open_epochs(path: &Path, epochs: &[EpochDone]) -> Result<LineFile, Error> {
    let mut text = String::new();
    for epoch in epochs {
        text += &encode_epoch(epoch)?;
        text.push('\n');
    }
    files::write_atomic(path, text.as_bytes())?;
    Ok(LineFile::open(path)?)
}

/// Appends an epoch.
pub(crate) fn write_epoch(lines: &mut LineFile, epoch: &EpochDone) -> Result<(), Error> {
    Ok(lines.push(&encode_epoch(epoch)?)?)
}

fn encode_epoch(epoch: &EpochDone) -> Result<String, Error> {
    let failed = |reason| Error::Encode { what: EPOCHS, reason };
    let mut object = Map::new();
    object.insert("format".into(), EPOCHS_FORMAT.into());
    if let Value::Object(fields) = serde_json::to_value(epoch).map_err(failed)? {
        object.extend(fields);
    }
    serde_json::to_string(&object).map_err(failed)
}

/// Name of the history in the run's folder: [`History`] in the shape, order and indentation of
/// Python's `json.dump(history, file, indent=4)`, which plotting scripts read.
pub const HISTORY: &str = "training_history.json";

/// Reads the history of a run.
pub fn read_history(path: &Path) -> Result<History, Error> {
    let bytes = files::read(path).map_err(files::Error::io("read", path))?;
    serde_json::from_slice(&bytes)
        .map_err(|reason| Error::NotAHistory { path: path.to_owned(), reason })
}

/// Replaces the history of a run.
///
/// # Errors
///
/// The file cannot be written; the old one is then unchanged.
pub fn write_history(path: &Path, history: &History) -> Result<(), Error> {
    let bytes =
        encode_history(history).map_err(|reason| Error::Encode { what: HISTORY, reason })?;
    Ok(files::write_atomic(path, &bytes)?)
}

/// The shortest pause between two writes.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(5);
/// Pauses are this many times as long as a write took.
const WRITE_TIME_FACTOR: u32 = 50;

/// Keeps `training_history.json` up to date. All epochs are in the file when it is dropped.
///
/// The file holds all epochs, so each write costs more than the one before. A thread of its own
/// writes it, seldom enough to be cheap however long the run is; what must not be lost is in
/// `epochs.jsonl`.
pub(crate) struct HistoryWriter {
    epochs: Option<Sender<EpochDone>>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl HistoryWriter {
    /// Writes `history` and starts the thread.
    pub(crate) fn start(path: PathBuf, history: History) -> Result<Self, Error> {
        write_history(&path, &history)?;
        let (epochs, receiver) = channel();
        let thread = std::thread::Builder::new().name("history".into());
        let thread = thread
            .spawn(move || write_until_closed(&path, history, &receiver))
            .map_err(|reason| Error::Thread { what: HISTORY, reason })?;
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

/// Writes the epochs that it receives, not too often, until the sender is gone.
fn write_until_closed(
    path: &Path,
    mut history: History,
    epochs: &Receiver<EpochDone>,
) -> Result<(), Error> {
    let mut due = Instant::now();
    let mut is_behind = false;
    loop {
        let received = if is_behind {
            epochs.recv_timeout(due.saturating_duration_since(Instant::now()))
        } else {
            epochs.recv().map_err(RecvTimeoutError::from)
        };
        match received {
            Ok(epoch) => {
                history.push(&epoch);
                is_behind = true;
            }
            Err(RecvTimeoutError::Timeout) => {
                let begun = Instant::now();
                write_history(path, &history)?;
                due = Instant::now() + pause_after(begun.elapsed());
                is_behind = false;
            }
            Err(RecvTimeoutError::Disconnected) if is_behind => {
                return write_history(path, &history);
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// The pause after a write that took this long.
fn pause_after(write: Duration) -> Duration {
    (WRITE_TIME_FACTOR * write).max(MIN_WRITE_INTERVAL)
}

fn encode_history(history: &History) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = Vec::new();
    let format = PrettyFormatter::with_indent(b"    ");
    history.serialize(&mut Serializer::with_formatter(&mut bytes, format))?;
    Ok(bytes)
}

/// Name of the test's result in the run's folder. A run that is resumed after its end does not test
/// the same weights again.
const TEST_METRICS: &str = "test_metrics.json";

/// Version of `test_metrics.json`.
const TEST_FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct TestMetrics {
    format: u32,
    /// Fingerprint of the checkpoint that was tested.
    checkpoint: String,
    #[serde(flatten)]
    tested: Evaluated,
}

/// Stores the test's result for the checkpoint with this fingerprint; returns when it is on disk.
///
/// # Errors
///
/// The file cannot be written; the old one is then unchanged.
pub fn write_test(folder: &Path, checkpoint: &str, tested: &Evaluated) -> Result<(), Error> {
    let checkpoint = checkpoint.to_owned();
    let tested = tested.clone();
    let bytes = serde_json::to_vec_pretty(&TestMetrics { format: TEST_FORMAT, checkpoint, tested })
        .map_err(|reason| Error::Encode { what: TEST_METRICS, reason })?;
    Ok(files::write_atomic(&folder.join(TEST_METRICS), &bytes)?)
}

/// Reads the test's result for the checkpoint with this fingerprint; `None` if it is not known or
/// cannot be read: the test is then made again.
pub fn read_test(folder: &Path, checkpoint: &str) -> Option<Evaluated> {
    let bytes = files::read(&folder.join(TEST_METRICS)).ok()?;
    let written: TestMetrics = serde_json::from_slice(&bytes).ok()?;
    (written.format == TEST_FORMAT && written.checkpoint == checkpoint).then_some(written.tested)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::record::example_events;

    #[test]
    fn epochs_come_back_to_the_bit_and_a_torn_line_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EPOCHS);
        assert_eq!(read_epochs(&path).unwrap(), None);
        let metrics = [("val/mse".to_owned(), 0.1 + 0.2)].into();
        let second = EpochDone { metrics, ..example_events::epoch_done(2) };
        let mut lines = open_epochs(&path, &[example_events::epoch_done(1)]).unwrap();
        write_epoch(&mut lines, &second).unwrap();
        let torn = [fs::read(&path).unwrap(), b"{\"format\":1,\"epo\0\xff".to_vec()].concat();
        files::write_atomic(&path, &torn).unwrap();
        assert_eq!(read_epochs(&path).unwrap().unwrap(), [example_events::epoch_done(1), second]);
    }

    #[test]
    fn a_line_says_its_format_and_a_newer_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(EPOCHS);
        open_epochs(&path, &[example_events::epoch_done(1)]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\"format\":1,\"epoch\":1,\"step\":20,"), "{text}");
        files::write_atomic(&path, text.replace("\"format\":1", "\"format\":7").as_bytes())
            .unwrap();
        let message = read_epochs(&path).unwrap_err().to_string();
        assert!(
            message.contains("has format 7, and this ddprun reads formats up to 1"),
            "{message}"
        );
    }

    #[test]
    fn the_shape_is_that_of_python_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(HISTORY);
        let mut history = History::default();
        history.push(&example_events::epoch_done(1));
        history.push(&EpochDone { val_loss: None, ..example_events::epoch_done(2) });
        write_history(&path, &history).unwrap();
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
        assert_eq!(read_history(&path).unwrap(), history);
    }

    #[test]
    fn epochs_are_written_seldom_and_all_of_them_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(HISTORY);
        let mut keeper = HistoryWriter::start(path.clone(), History::default()).unwrap();
        for epoch in 1..=1000 {
            keeper.push(&example_events::epoch_done(epoch)).unwrap();
        }
        keeper.finish().unwrap();
        assert_eq!(read_history(&path).unwrap().len(), 1000);
        keeper.finish().unwrap();
        let dropped = HistoryWriter::start(path.clone(), History::default());
        dropped.unwrap().push(&example_events::epoch_done(1)).unwrap();
        assert_eq!(read_history(&path).unwrap().len(), 1);
        assert_eq!(pause_after(Duration::from_millis(3)), MIN_WRITE_INTERVAL);
        assert_eq!(pause_after(Duration::from_secs(1)), Duration::from_secs(50));
    }

    #[test]
    fn a_write_that_fails_is_told_at_the_latest_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run").join(HISTORY);
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
        let path = folder.path().join(HISTORY);
        files::write_atomic(&path, b"{\"train_loss\": []}").unwrap();
        let message = read_history(&path).unwrap_err().to_string();
        assert_eq!(message, format!("`{}` is not a training history", path.display()));
    }

    #[test]
    fn a_test_is_known_of_the_checkpoint_that_it_was_made_with_and_of_no_other() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read_test(folder.path(), "5c1f"), None);
        let tested = example_events::evaluated(40);
        write_test(folder.path(), "5c1f", &tested).unwrap();
        assert_eq!(read_test(folder.path(), "5c1f"), Some(tested));
        assert_eq!(read_test(folder.path(), "77aa"), None);
        files::write_atomic(&folder.path().join(TEST_METRICS), b"{\"format\": 2}").unwrap();
        assert_eq!(read_test(folder.path(), "5c1f"), None);
    }
}
