//! `epochs.jsonl`: one line per finished epoch, added when the epoch is over. It is the truth about
//! epochs; `training_history.json` is made of it. After a resume the lines of the epochs that are
//! done again are cut, so that the file ends with the epochs of an undisturbed run.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};

use super::Error;
use crate::event::EpochDone;
use crate::files::{self, Lines};

/// Name of the file in the run's folder.
pub const NAME: &str = "epochs.jsonl";

/// Version of a line's form.
const FORMAT: u32 = 1;

/// The epochs in the file, oldest first; `None` if there is no such file. A line that a killed
/// process cut short is passed over.
pub fn read(path: &Path) -> Result<Option<Vec<EpochDone>>, Error> {
    let bytes = match files::read(path) {
        Err(reason) if reason.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(files::Error::io("read", path))?,
    };
    let mut epochs = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        match parse(line) {
            Ok(epoch) => epochs.push(epoch),
            Err(Some(found)) => {
                return Err(Error::Newer { path: path.to_owned(), found, known: FORMAT });
            }
            Err(None) => {}
        }
    }
    Ok(Some(epochs))
}

/// Opens the file with these epochs and no others.
pub(crate) fn open(path: &Path, epochs: &[EpochDone]) -> Result<Lines, Error> {
    let mut text = String::new();
    for epoch in epochs {
        text += &encode(epoch)?;
        text.push('\n');
    }
    files::write_atomic(path, text.as_bytes())?;
    Ok(Lines::open(path)?)
}

/// Appends an epoch.
pub(crate) fn write(lines: &mut Lines, epoch: &EpochDone) -> Result<(), Error> {
    Ok(lines.push(&encode(epoch)?)?)
}

fn encode(epoch: &EpochDone) -> Result<String, Error> {
    let failed = |reason| Error::Encode { what: NAME, reason };
    let mut object = Map::new();
    object.insert("format".into(), FORMAT.into());
    if let Value::Object(fields) = serde_json::to_value(epoch).map_err(failed)? {
        object.extend(fields);
    }
    serde_json::to_string(&object).map_err(failed)
}

/// `Err(Some(format))` for a line of a newer format, `Err(None)` for what is no epoch.
fn parse(line: &[u8]) -> Result<EpochDone, Option<u32>> {
    let object: Map<String, Value> = serde_json::from_slice(line).map_err(|_| None)?;
    let format = object.get("format").and_then(Value::as_u64).ok_or(None)?;
    if format > u64::from(FORMAT) {
        return Err(Some(format as u32));
    }
    serde_json::from_value(Value::Object(object)).map_err(|_| None)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::record::example_events;

    #[test]
    fn epochs_come_back_to_the_bit_and_a_torn_line_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        assert_eq!(read(&path).unwrap(), None);
        let metrics = [("val/mse".to_owned(), 0.1 + 0.2)].into();
        let second = EpochDone { metrics, ..example_events::epoch_done(2) };
        let mut lines = open(&path, &[example_events::epoch_done(1)]).unwrap();
        write(&mut lines, &second).unwrap();
        let torn = [fs::read(&path).unwrap(), b"{\"format\":1,\"epo\0\xff".to_vec()].concat();
        files::write_atomic(&path, &torn).unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), [example_events::epoch_done(1), second]);
    }

    #[test]
    fn a_line_says_its_format_and_a_newer_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        open(&path, &[example_events::epoch_done(1)]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("{\"format\":1,\"epoch\":1,\"step\":20,"), "{text}");
        files::write_atomic(&path, text.replace("\"format\":1", "\"format\":7").as_bytes())
            .unwrap();
        let message = read(&path).unwrap_err().to_string();
        assert!(
            message.contains("has format 7, and this ddprun reads formats up to 1"),
            "{message}"
        );
    }
}
