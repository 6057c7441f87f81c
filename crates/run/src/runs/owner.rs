//! Whose checkpoints a folder holds, and where the paths of a run begin.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::record::{DESCRIPTION, newest_of};
use crate::runs::Error;
use crate::runs::checkpoint_ref::run_of;
use crate::runs::run_ref::LOGS;
use crate::runs::stored::StoredRun;

/// The folder that the run in `logs` says its checkpoints are in, which may be gone.
pub fn checkpoints_folder(logs: &Path) -> Option<PathBuf> {
    Some(StoredRun::seen_from_here(logs).ok()?.run.checkpoints)
}

/// The folder of the checkpoints of the run in `logs`, a whole path, if it is there and no link.
pub fn checkpoints_of(logs: &Path) -> Result<Option<PathBuf>, Error> {
    if !newest_of(logs, DESCRIPTION).is_file() {
        return Ok(None);
    }
    let stored = StoredRun::seen_from_here(logs)?;
    let folder = stored.run.checkpoints;
    let is_own = folder.is_dir() && !folder.is_symlink();
    Ok(folder.canonicalize().ok().filter(|_| is_own))
}

/// The other run whose checkpoints these are, of whose logs the folder `logs`, a whole path, is a
/// copy.
pub fn other_owner(checkpoints: &Path, logs: &Path) -> Option<PathBuf> {
    let owner = run_of(checkpoints, Path::new(LOGS));
    // One folder may be seen at two places.
    let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    let is_other = |owner: &PathBuf| owner != logs && identity(owner) != identity(logs);
    owner.and_then(|owner| owner.canonicalize().ok()).filter(is_other)
}

/// The project of the run in `logs`, a whole path: by the end of that path, or else the current
/// folder. Where the run says that it was started does not count: it may have come from elsewhere.
pub fn project_of(logs: &Path) -> Option<PathBuf> {
    let named = StoredRun::read(logs).ok()?.run.logs;
    let named: PathBuf = named.components().filter(|part| part.as_os_str() != ".").collect();
    if named.is_relative() && logs.ends_with(&named) {
        return logs.ancestors().nth(named.components().count()).map(Path::to_owned);
    }
    std::env::current_dir().and_then(std::fs::canonicalize).ok()
}

/// The weights that the run in `logs` started from, a whole path, if they are still there.
pub fn weights_before(logs: &Path) -> Option<PathBuf> {
    let description = StoredRun::read(logs).ok()?;
    let here = std::env::current_dir().unwrap_or_default();
    let root = description.root(&logs.canonicalize().ok()?, &here);
    root.join(description.plan.model.pretrained?).canonicalize().ok()
}
