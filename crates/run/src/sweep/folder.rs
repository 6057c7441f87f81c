//! The folder of a sweep: it holds no other runs, as what is done to the sweep would be done to
//! those runs too; and what trials leave behind there without need is removed: checkpoints of
//! pruned ones, and what a kill left half-made. What cannot be removed now does no harm, and is
//! looked at again when the sweep continues.

use std::fs;
use std::path::{Path, PathBuf};

use crate::checkpoint;
use crate::files::{self, RunLock, lock_holder};
use crate::plan::RunFolders;
use crate::record;
use crate::sweep::Error;
use crate::sweep::journal::NAME;
use crate::sweep::request::SweepRequest;
use crate::sweep::trial::{self, State, Trial, is_trial};

/// Returns true for the folder of a sweep or of a learning-rate range test, which has no journal.
pub fn is_of_sweep(folder: &Path) -> bool {
    folder.join(NAME).is_file() || record::is_run(&folder.join(trial::id(1)))
}

/// Refuses a folder for a new sweep if it holds runs other than trials.
pub fn refuse_runs(folder: &Path) -> Result<(), Error> {
    if folder.join(NAME).is_file() {
        return Ok(());
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_other = |path: &PathBuf| record::is_run(path) && !is_trial(path);
    let first = entries.map(|entry| entry.path()).filter(is_other).min();
    first.map_or(Ok(()), |run| Err(Error::HoldsRuns { folder: folder.to_owned(), run }))
}

/// Creates the sweep's folder if needed, and locks it.
pub(super) fn prepared_folder(folder: &Path) -> Result<RunLock, Error> {
    files::create_writable_folder(folder)?;
    let lock = RunLock::acquire(folder)?;
    files::remove_stale_temporaries(folder)?;
    Ok(lock)
}

/// Removes leftovers of an interrupted sweep's trials before any of them runs.
pub(super) fn clear(order: &SweepRequest<'_>, trials: &[Trial]) {
    clear_folder(&order.base.experiment.checkpoint.dir.join(&order.sweep.name));
    for trial in trials {
        let folders = order.folders(trial.number);
        if lock_holder(&folders.logs).is_some() {
            // Another process is resuming this trial.
            continue;
        }
        clear_folder(&folders.logs);
        if trial.state == State::Pruned && !order.sweep.keep_pruned_checkpoints {
            remove_checkpoints(&folders);
        } else {
            clear_folder(&folders.checkpoints);
        }
    }
}

fn clear_folder(folder: &Path) {
    drop(files::remove_stale_temporaries(folder));
}

/// Removes the checkpoints of a trial.
pub(super) fn remove_checkpoints(folders: &RunFolders) {
    let RunFolders { logs, checkpoints, .. } = folders;
    if !checkpoints.exists() {
        return;
    }
    if logs.canonicalize().ok() != checkpoints.canonicalize().ok() {
        drop(files::remove_folder(checkpoints));
        return;
    }
    // One folder for both: the records stay.
    for found in checkpoint::all(checkpoints).unwrap_or_default() {
        drop(files::remove_folder(&found.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
