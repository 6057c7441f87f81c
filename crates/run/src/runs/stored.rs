//! `run.json`: a run as it was stored, the folder that its paths are relative to, and its
//! checkpoints.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::OpenCheckpoint;
use crate::files;
use crate::model::Lora;
use crate::plan::{Plan, RunFolders};
use crate::record::{DESCRIPTION, DESCRIPTION_FORMAT as FORMAT, newest_of};
use crate::runs::Error;
use crate::runs::checkpoint_choice::{CheckpointChoice, open};

/// `run.json`: the folders and the plan of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stored {
    pub(crate) format: u32,
    pub(crate) run: RunFolders,
    pub(crate) plan: Value,
    /// Folder that relative paths started from; absent in runs of earlier versions.
    #[serde(default)]
    pub(crate) started_in: Option<PathBuf>,
}

/// A run as described by its newest start.
#[derive(Clone, Debug)]
pub struct StoredRun {
    pub run: RunFolders,
    pub plan: Plan,
    /// Folder that relative paths started from.
    started_in: Option<PathBuf>,
}

impl StoredRun {
    /// The adapters that it trains, if any.
    pub fn lora(&self) -> Option<Lora> {
        Lora::deserialize(self.plan.model.kind.options.get("lora")?).ok()
    }

    /// Reads the run in `folder`, with paths as they were stored.
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

    /// Reads the run in `folder`; paths of its own folders are valid from the current folder.
    pub fn seen_from_here(folder: &Path) -> Result<Self, Error> {
        Ok(Self::read(folder)?.with_own_folders(folder))
    }

    /// Reads the run in `folder`. The second is the folder that its paths are relative to, unless
    /// it is the current one.
    pub(super) fn rooted(folder: &Path) -> Result<(Self, Option<PathBuf>), Error> {
        Ok(Self::read(folder)?.with_root(folder))
    }

    fn with_own_folders(self, folder: &Path) -> Self {
        let (mut stored, root) = self.with_root(folder);
        if let Some(root) = root {
            let RunFolders { checkpoints, logs, .. } = &mut stored.run;
            *checkpoints = root.join(&checkpoints);
            *logs = root.join(&logs);
        }
        stored
    }

    fn with_root(mut self, folder: &Path) -> (Self, Option<PathBuf>) {
        let here = std::env::current_dir().unwrap_or_default();
        let Ok(folder) = folder.canonicalize() else { return (self, None) };
        let (root, logs) = root_of(&folder, &self, &here);
        self.run.logs = logs;
        (self, Some(root).filter(|root| *root != here))
    }

    /// The project of the run in `logs`, an absolute path: by the end of that path, or else the
    /// current folder. The folder in which the run says that it was started does not count: the run
    /// may have come from elsewhere.
    fn project(&self, logs: &Path) -> Option<PathBuf> {
        let named = self.run.logs.components().filter(|part| part.as_os_str() != ".");
        let named: PathBuf = named.collect();
        if named.is_relative() && logs.ends_with(&named) {
            return logs.ancestors().nth(named.components().count()).map(Path::to_owned);
        }
        std::env::current_dir().and_then(std::fs::canonicalize).ok()
    }

    /// Opens one of its checkpoints.
    pub fn checkpoint(&self, choice: CheckpointChoice) -> Result<OpenCheckpoint, Error> {
        open(&self.run.checkpoints, Some(&self.plan.checkpoint), choice)
    }
}

/// The folder that the paths of the run in `folder` are relative to, and its log folder from there.
/// A project that was moved or copied as a whole is found by the end of the folder's path; a log
/// folder that stands alone belongs to the folder in which the run was started.
fn root_of(folder: &Path, stored: &StoredRun, here: &Path) -> (PathBuf, PathBuf) {
    let StoredRun { run, started_in, .. } = stored;
    let is_unmoved = |root: &&PathBuf| {
        // Logs with an absolute path are found without it.
        root.is_dir() && root.join(&run.logs).canonicalize().is_ok_and(|logs| logs == folder)
    };
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

/// The checkpoint folder that the run in `logs` names, which may be gone, if it lies in the run's
/// project.
pub fn checkpoints_folder(logs: &Path) -> Option<PathBuf> {
    let stored = StoredRun::read(logs).ok()?;
    let project = stored.project(&logs.canonicalize().ok()?)?;
    let checkpoints = stored.with_own_folders(logs).run.checkpoints;
    let holder = checkpoints.parent()?.canonicalize().ok()?;
    holder.starts_with(project).then_some(checkpoints)
}

/// The checkpoint folder of the run in `logs`, as an absolute path, if it exists and is not a link.
pub fn checkpoints_of(logs: &Path) -> Result<Option<PathBuf>, Error> {
    if !newest_of(logs, DESCRIPTION).is_file() {
        return Ok(None);
    }
    let stored = StoredRun::seen_from_here(logs)?;
    let folder = stored.run.checkpoints;
    let is_own = folder.is_dir() && !folder.is_symlink();
    Ok(folder.canonicalize().ok().filter(|_| is_own))
}

/// The project folder of the run in `logs`, an absolute path.
pub fn project_of(logs: &Path) -> Option<PathBuf> {
    StoredRun::read(logs).ok()?.project(logs)
}

/// The weights that the run in `logs` started from, as an absolute path, if they still exist.
pub fn weights_before(logs: &Path) -> Option<PathBuf> {
    let stored = StoredRun::read(logs).ok()?;
    let here = std::env::current_dir().unwrap_or_default();
    let (root, _) = root_of(&logs.canonicalize().ok()?, &stored, &here);
    root.join(stored.plan.model.pretrained?).canonicalize().ok()
}
