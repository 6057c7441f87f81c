//! Folders of starts that were killed before they had described their run: nothing goes on from
//! them.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::files;
use crate::plan::Plan;
use crate::record::{DATA, DESCRIPTION, ENVIRONMENT, RESOLVED};

/// What a start may have written before it was killed, besides files whose names begin with a dot.
const EARLY_FILES: [&str; 4] = ["experiment.toml", DATA, DESCRIPTION, ENVIRONMENT];
/// A start has locked its folder long before it is as old as this.
const GRACE_PERIOD: Duration = Duration::from_mins(1);

/// Removes the folders that earlier starts of the experiment have left in this way. One that cannot
/// be removed stays.
pub(crate) fn remove(plan: &Plan) {
    let [logs, checkpoints] =
        [&plan.logging.dir, &plan.checkpoint.dir].map(|folder| folder.join(&plan.name));
    let Ok(runs) = fs::read_dir(logs) else { return };
    for run in runs.flatten().filter(|run| is_abandoned(&run.path(), SystemTime::now())) {
        drop(files::remove_folder(&run.path()));
        // Nothing was saved: only an empty folder goes.
        files::remove_empty_folder(&checkpoints.join(run.file_name()));
    }
}

/// Whether a start left `folder` before it had described its run. One that is under way has locked
/// it, or is young.
fn is_abandoned(folder: &Path, now: SystemTime) -> bool {
    // Written last.
    if folder.join(RESOLVED).exists() {
        return false;
    }
    let Ok(mut found) = fs::read_dir(folder) else { return false };
    let is_early = |name: &str| name.starts_with('.') || EARLY_FILES.contains(&name);
    let is_empty = found
        .all(|found| found.is_ok_and(|found| found.file_name().to_str().is_some_and(is_early)));
    let modified = folder.metadata().and_then(|folder| folder.modified());
    let age = modified.ok().and_then(|modified| now.duration_since(modified).ok());
    is_empty && age.is_some_and(|age| age >= GRACE_PERIOD) && files::lock_holder(folder).is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::RunLock;

    #[test]
    fn only_an_old_unlocked_folder_without_a_run_is_abandoned() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, now) = (dir.path(), SystemTime::now());
        let later = now + 2 * GRACE_PERIOD;
        files::write_atomic(&folder.join("experiment.toml"), b"").unwrap();
        files::write_atomic(&folder.join(DESCRIPTION), b"").unwrap();
        files::write_atomic(&folder.join(".resolved.toml.12-0.tmp"), b"").unwrap();
        assert!(is_abandoned(folder, later));
        assert!(!is_abandoned(folder, now), "a start may be under way");
        let lock = RunLock::acquire(folder).unwrap();
        assert!(!is_abandoned(folder, later), "a start is under way");
        drop(lock);
        assert!(is_abandoned(folder, later));
        let log = folder.join("rank-0.log");
        files::write_atomic(&log, b"").unwrap();
        assert!(!is_abandoned(folder, later), "a user may want to read it");
        files::remove_file(&log).unwrap();
        files::write_atomic(&folder.join(RESOLVED), b"").unwrap();
        assert!(!is_abandoned(folder, later), "a run");
        assert!(!is_abandoned(&folder.join("absent"), later));
    }
}
