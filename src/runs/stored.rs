//! `run.json` -> a run as it was stored, the place where its paths begin, and its checkpoints.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::Opened;
use crate::config::PretrainedCheckpoint;
use crate::config::kind::Options;
use crate::files;
use crate::model::Lora;
use crate::plan::{CheckpointPlan, Plan, Precision, RunFolders};
use crate::record::{DESCRIPTION, DESCRIPTION_FORMAT as FORMAT, newest_of};
use crate::runs::Error;
use crate::runs::which::{Which, open};

/// `run.json`: the folders and the plan of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) format: u32,
    pub(crate) run: RunFolders,
    pub(crate) plan: Value,
    /// The folder where relative paths began; absent in runs of earlier versions.
    #[serde(default)]
    pub(crate) started_in: Option<PathBuf>,
}

/// What a run is, as its newest start wrote it down.
#[derive(Clone, Debug)]
pub(crate) struct StoredRun {
    pub(crate) run: RunFolders,
    pub(crate) plan: StoredPlan,
    /// The folder where relative paths began.
    started_in: Option<PathBuf>,
}

/// The plan of a run as it was stored.
#[derive(Clone, Debug)]
pub(crate) enum StoredPlan {
    /// By this version, or one whose plans have the same form.
    Current(Box<Plan>),
    /// By an earlier one; `prepare` decides it again.
    Earlier(Box<EarlierPlan>),
}

/// What has had the same form in the plans of all versions.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct EarlierPlan {
    checkpoint: CheckpointPlan,
    precision: Precision,
    model: EarlierModel,
}

/// What has been the same of their models.
#[derive(Clone, Debug, Deserialize)]
struct EarlierModel {
    pretrained: Option<PathBuf>,
    #[serde(default)]
    lora: Option<Lora>,
}

impl StoredPlan {
    /// The error is that of this version's form.
    fn of(stored: &Value) -> Result<Self, serde_json::Error> {
        let error = match Plan::deserialize(stored) {
            Ok(plan) => return Ok(Self::Current(Box::new(plan))),
            Err(error) => error,
        };
        EarlierPlan::deserialize(stored)
            .map(|plan| Self::Earlier(Box::new(plan)))
            .map_err(|_| error)
    }

    /// The whole plan, if it has this version's form.
    pub(crate) fn current(&self) -> Option<&Plan> {
        match self {
            Self::Current(plan) => Some(plan),
            Self::Earlier(_) => None,
        }
    }

    /// What was found out about its data; nothing in plans of an earlier form.
    pub(crate) fn found(&self) -> Options {
        self.current().map_or(Options::new(), |plan| plan.data.source.found.clone())
    }

    /// When checkpoints are saved, and which are kept.
    pub(crate) fn checkpoint(&self) -> &CheckpointPlan {
        match self {
            Self::Current(plan) => &plan.checkpoint,
            Self::Earlier(plan) => &plan.checkpoint,
        }
    }

    /// In which numbers it computes.
    pub(crate) fn precision(&self) -> Precision {
        match self {
            Self::Current(plan) => plan.precision,
            Self::Earlier(plan) => plan.precision,
        }
    }

    /// Weights that it started from.
    pub(crate) fn pretrained(&self) -> Option<&Path> {
        match self {
            Self::Current(plan) => plan.model.pretrained.as_deref(),
            Self::Earlier(plan) => plan.model.pretrained.as_deref(),
        }
    }

    /// What these are, if they are those of a run.
    pub(crate) fn pretrained_checkpoint(&self) -> Option<PretrainedCheckpoint> {
        self.current().and_then(|plan| plan.model.pretrained_checkpoint.clone())
    }

    /// The adapters that it trains, if it does.
    pub(crate) fn lora(&self) -> Option<Lora> {
        match self {
            Self::Current(plan) => Lora::deserialize(plan.model.kind.options.get("lora")?).ok(),
            Self::Earlier(plan) => plan.model.lora.clone(),
        }
    }
}

impl StoredRun {
    /// The run in `folder`; its paths are as they were written down.
    ///
    /// # Errors
    ///
    /// There is none, or it cannot be understood.
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
        let plan = StoredPlan::of(&stored.plan).map_err(|error| unusable(error.to_string()))?;
        Ok(Self { run: stored.run, plan, started_in: stored.started_in })
    }

    /// The run in `folder`; its own folders are those that are there, seen from here.
    ///
    /// # Errors
    ///
    /// As [`StoredRun::read`].
    pub(crate) fn seen_from_here(folder: &Path) -> Result<Self, Error> {
        let (mut stored, root) = Self::rooted(folder)?;
        if let Some(root) = root {
            let RunFolders { checkpoints, logs, .. } = &mut stored.run;
            *checkpoints = root.join(&checkpoints);
            *logs = root.join(&logs);
        }
        Ok(stored)
    }

    /// The run in `folder`, and where its paths begin, if that is not here.
    ///
    /// # Errors
    ///
    /// As [`StoredRun::read`].
    pub(crate) fn rooted(folder: &Path) -> Result<(Self, Option<PathBuf>), Error> {
        let mut stored = Self::read(folder)?;
        let here = std::env::current_dir().unwrap_or_default();
        let Ok(folder) = folder.canonicalize() else { return Ok((stored, None)) };
        let (root, logs) = root_of(&folder, &stored, &here);
        stored.run.logs = logs;
        Ok((stored, Some(root).filter(|root| *root != here)))
    }

    /// One of its checkpoints.
    ///
    /// # Errors
    ///
    /// There is no such one, or it is damaged.
    pub(crate) fn checkpoint(&self, which: Which) -> Result<Opened, Error> {
        open(&self.run.checkpoints, Some(self.plan.checkpoint()), which)
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
