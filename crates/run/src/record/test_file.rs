//! `test_metrics.json`: what the test of a run measured, and of which checkpoint. A run that is
//! resumed after its end does not test the same weights again.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Error;
use crate::event::Evaluated;
use crate::files;

/// Name of the file in the run's folder.
pub const NAME: &str = "test_metrics.json";

/// Version of the file's form.
const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Written {
    format: u32,
    /// Fingerprint of the checkpoint that was tested.
    checkpoint: String,
    #[serde(flatten)]
    tested: Evaluated,
}

/// Keeps what was measured of the checkpoint with this fingerprint; returns when it is on disk.
///
/// # Errors
///
/// The file cannot be written; the old one is then unchanged.
pub fn write(folder: &Path, checkpoint: &str, tested: &Evaluated) -> Result<(), Error> {
    let checkpoint = checkpoint.to_owned();
    let tested = tested.clone();
    let bytes = serde_json::to_vec_pretty(&Written { format: FORMAT, checkpoint, tested })
        .map_err(|reason| Error::Encode { what: NAME, reason })?;
    Ok(files::write_atomic(&folder.join(NAME), &bytes)?)
}

/// What was measured of the checkpoint with this fingerprint; `None` if that is not known, or not
/// to be read: the test is then made again.
pub fn read(folder: &Path, checkpoint: &str) -> Option<Evaluated> {
    let bytes = files::read(&folder.join(NAME)).ok()?;
    let written: Written = serde_json::from_slice(&bytes).ok()?;
    (written.format == FORMAT && written.checkpoint == checkpoint).then_some(written.tested)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example_events;

    #[test]
    fn a_test_is_known_of_the_checkpoint_that_it_was_made_with_and_of_no_other() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path(), "5c1f"), None);
        let tested = example_events::evaluated(40);
        write(folder.path(), "5c1f", &tested).unwrap();
        assert_eq!(read(folder.path(), "5c1f"), Some(tested));
        assert_eq!(read(folder.path(), "77aa"), None);
        files::write_atomic(&folder.path().join(NAME), b"{\"format\": 2}").unwrap();
        assert_eq!(read(folder.path(), "5c1f"), None);
    }
}
