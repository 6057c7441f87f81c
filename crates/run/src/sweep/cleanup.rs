//! What trials leave behind and is not needed: checkpoints of pruned ones, and what a kill left
//! half-made. What cannot be removed now does no harm, and is looked at again when the sweep
//! continues.

use std::path::Path;

use crate::checkpoint;
use crate::files::{self, lock_holder};
use crate::plan::RunFolders;
use crate::sweep::request::Order;
use crate::sweep::trial::{State, Trial};

/// Removes what the trials of an interrupted sweep have left, before any of them runs.
pub(super) fn clear(order: &Order<'_>, trials: &[Trial]) {
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
