//! `training_history.json`: [`History`] in the shape, order and indentation of Python's
//! `json.dump(history, file, indent=4)`, which plotting scripts read.

use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::ser::{PrettyFormatter, Serializer};

use super::Error;
use crate::event::History;
use crate::files;

/// Name of the file in the run's folder.
pub const NAME: &str = "training_history.json";

/// Reads the history of a run.
///
/// # Errors
///
/// The file cannot be read, or holds something else.
pub fn read(path: &Path) -> Result<History, Error> {
    let bytes = fs::read(path).map_err(files::Error::io("read", path))?;
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

fn encode(history: &History) -> Result<Vec<u8>, serde_json::Error> {
    let mut bytes = Vec::new();
    let format = PrettyFormatter::with_indent(b"    ");
    history.serialize(&mut Serializer::with_formatter(&mut bytes, format))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::examples;

    #[test]
    fn the_shape_is_that_of_python_and_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        let mut history = History::default();
        history.push(&examples::epoch_done(1));
        history.push(&crate::event::EpochDone { val_loss: None, ..examples::epoch_done(2) });
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
    fn another_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(NAME);
        files::write_atomic(&path, b"{\"train_loss\": []}").unwrap();
        let message = read(&path).unwrap_err().to_string();
        assert_eq!(message, format!("`{}` is not a training history", path.display()));
    }
}
