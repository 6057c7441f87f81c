//! Whose a folder of logs is: a sweep's or an experiment's. Trials and other runs do not share one,
//! as what is done to the sweep would be done to those runs too.

use std::fs;
use std::path::{Path, PathBuf};

use crate::record;
use crate::sweep::Error;
use crate::sweep::journal::NAME;
use crate::sweep::trial::{self, is_trial};

/// Whether the folder is that of a sweep, or of a learning-rate range test, which has no journal.
pub fn is_of_sweep(folder: &Path) -> bool {
    folder.join(NAME).is_file() || record::is_run(&folder.join(trial::id(1)))
}

/// Refuses a folder for a sweep that begins if it holds runs that are no trials.
pub fn refuse_runs(folder: &Path) -> Result<(), Error> {
    if folder.join(NAME).is_file() {
        return Ok(());
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_other = |path: &PathBuf| record::is_run(path) && !is_trial(path);
    let first = entries.map(|entry| entry.path()).filter(is_other).min();
    first.map_or(Ok(()), |run| Err(Error::HoldsRuns { folder: folder.to_owned(), run }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;
    use crate::record::RESOLVED;

    #[test]
    fn a_folder_is_that_of_a_sweep_or_of_other_runs() {
        let logs = tempfile::tempdir().unwrap();
        let at = |name: &str| logs.path().join(name);
        let make = |path: &str, file: &str| {
            files::create_folder(&at(path)).unwrap();
            files::write_atomic(&at(path).join(file), b"").unwrap();
        };
        make("tune", NAME);
        make("tune/trial-0001", RESOLVED);
        make("range/trial-0001", RESOLVED);
        make("small/20260101-120000-3fa2", RESOLVED);
        make("small/notes", "notes.txt");
        let found = ["tune", "range", "small", "absent"].map(|name| is_of_sweep(&at(name)));
        assert_eq!(found, [true, true, false, false]);
        for free in ["tune", "range", "absent"] {
            assert!(refuse_runs(&at(free)).is_ok(), "{free}");
        }
        let error = refuse_runs(&at("small")).unwrap_err();
        assert!(
            error.is_refusal() && error.to_string().contains("20260101-120000-3fa2"),
            "{error}"
        );
        make("tune/20260101-120000-3fa2", RESOLVED);
        assert!(refuse_runs(&at("tune")).is_ok(), "a sweep that has begun goes on");
    }
}
