//! `run.json` -> a run as it was stored, the place where its paths begin, and its checkpoints.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::Opened;
use crate::files;
use crate::model::Lora;
use crate::plan::{Plan, RunFolders};
use crate::record::{DESCRIPTION, DESCRIPTION_FORMAT as FORMAT, newest_of};
use crate::runs::Error;
use crate::runs::checkpoint_ref::{Which, open, run_of};
use crate::runs::run_ref::LOGS;

/// `run.json`: the folders and the plan of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stored {
    pub(crate) format: u32,
    pub(crate) run: RunFolders,
    pub(crate) plan: Value,
    /// The folder where relative paths began; absent in runs of earlier versions.
    #[serde(default)]
    pub(crate) started_in: Option<PathBuf>,
}

/// What a run is, as its newest start wrote it down.
#[derive(Clone, Debug)]
pub struct StoredRun {
    pub run: RunFolders,
    pub plan: Plan,
    /// The folder where relative paths began.
    started_in: Option<PathBuf>,
}

impl StoredRun {
    /// The adapters that it trains, if it does.
    pub fn lora(&self) -> Option<Lora> {
        Lora::deserialize(self.plan.model.kind.options.get("lora")?).ok()
    }

    /// The run in `folder`; its paths are as they were written down.
    pub(crate) fn read(folder: &Path) -> Result<Self, Error> {
        let path = newest_of(folder, DESCRIPTION);
        let unusable = |why: String| Error::Unusable { path: path.clone(), why };
        let bytes = files::read(&path).map_err(|error| unusable(error.to_string()))?;
        let stored: Stored =
            serde_json::from_slice(&bytes).map_err(|error| unusable(error.to_string()))?;
        if stored.format > FORMAT {
            let found = stored.format;
            return Err(unusable(format!(
                "a newer ddprun wrote it, in format {found}; this one reads up to {FORMAT}"
            )));
        }
        let plan = Plan::deserialize(&stored.plan).map_err(|error| {
            unusable(format!(
                "{error}; another version of ddprun wrote it: train its `resolved.toml` again"
            ))
        })?;
        Ok(Self { run: stored.run, plan, started_in: stored.started_in })
    }

    /// The run in `folder`; its own folders are those that are there, seen from here.
    pub fn seen_from_here(folder: &Path) -> Result<Self, Error> {
        let (mut stored, root) = Self::rooted(folder)?;
        if let Some(root) = root {
            let RunFolders { checkpoints, logs, .. } = &mut stored.run;
            *checkpoints = root.join(&checkpoints);
            *logs = root.join(&logs);
        }
        Ok(stored)
    }

    /// The run in `folder`, and where its paths begin, if that is not here.
    pub(crate) fn rooted(folder: &Path) -> Result<(Self, Option<PathBuf>), Error> {
        let mut stored = Self::read(folder)?;
        let here = std::env::current_dir().unwrap_or_default();
        let Ok(folder) = folder.canonicalize() else { return Ok((stored, None)) };
        let (root, logs) = root_of(&folder, &stored, &here);
        stored.run.logs = logs;
        Ok((stored, Some(root).filter(|root| *root != here)))
    }

    /// One of its checkpoints.
    pub fn checkpoint(&self, which: Which) -> Result<Opened, Error> {
        open(&self.run.checkpoints, Some(&self.plan.checkpoint), which)
    }

    /// Where its paths begin, seen from `here`.
    pub(crate) fn root(&self, folder: &Path, here: &Path) -> PathBuf {
        root_of(folder, self, here).0
    }
}

/// Where the paths of the run found in `folder` begin, and its log folder from there. A project
/// that was moved or copied as a whole is found by the end of the folder's path; a log folder that
/// stands alone belongs to the folder in which the run was started.
fn root_of(folder: &Path, stored: &StoredRun, here: &Path) -> (PathBuf, PathBuf) {
    let StoredRun { run, started_in, .. } = stored;
    let is_unmoved =
        |root: &&PathBuf| root.join(&run.logs).canonicalize().is_ok_and(|logs| logs == folder);
    if let Some(root) = started_in.as_ref().filter(is_unmoved) {
        return (root.clone(), run.logs.clone());
    }
    let logs: PathBuf = run.logs.components().filter(|part| part.as_os_str() != ".").collect();
    if logs.is_relative() && folder.ends_with(&logs) {
        let root = folder.ancestors().nth(logs.components().count());
        return (root.unwrap_or(folder).to_owned(), run.logs.clone());
    }
    let has_checkpoints = |root: &&Path| root.join(&run.checkpoints).is_dir();
    let above = folder.ancestors().find(|root| has_checkpoints(root)).map(Path::to_owned);
    let above = above.filter(|_| run.checkpoints.is_relative());
    let started = started_in.clone().filter(|root| root.is_dir());
    (above.or(started).unwrap_or_else(|| here.to_owned()), folder.to_owned())
}

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
