//! What a run's folder keeps of its starts, and where its paths begin.
//!
//! ```text
//! experiment.toml  run.json    resolved.toml    data.json      the first start: as asked, as decided, as found
//!                  run.2.json  resolved.2.toml  (data.2.json)  the next one that changed something
//! ```

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::{Refusal, find_run, to_stderr};
use crate::config::PretrainedCheckpoint;
use crate::config::kind::Options;
use crate::data::{self, Fingerprint};
use crate::files;
use crate::model::Lora;
use crate::plan::{CheckpointPlan, ModelPlan, Plan, Precision, RunFolders};
use crate::record::{
    DATA, DESCRIPTION, DESCRIPTION_FORMAT as FORMAT, RESOLVED, newest_of, newest_start, of_start,
};
use crate::worker::{self, exit};

/// `run.json`: the folders and the plan of a run.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    format: u32,
    run: RunFolders,
    plan: Value,
    /// The folder where relative paths began; absent in runs of earlier versions.
    #[serde(default)]
    started_in: Option<PathBuf>,
}

/// What a run is.
#[derive(Clone, Debug)]
pub(crate) struct Description {
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

/// The run that `word` names ([`find_run::run`]); its paths are as they were written down.
pub(crate) fn find_run(word: Option<&str>) -> Result<Description, Refusal> {
    described(&find_run::run(word)?)
}

/// As [`find_run`], and goes to where the run's paths begin, so that it is what it was wherever it
/// is called from.
pub(crate) fn enter_run(word: Option<&str>) -> Result<Description, Refusal> {
    enter(&find_run::run(word)?)
}

/// As [`enter_run`]; of a sweep its best trial.
pub(crate) fn enter_best_run(word: Option<&str>) -> Result<Description, Refusal> {
    enter(&find_run::best_run(word)?)
}

/// The run in `folder`; its own folders are those that are there, seen from here.
pub(crate) fn seen_from_here(folder: &Path) -> Result<Description, Refusal> {
    let mut description = described(folder)?;
    let here = std::env::current_dir().unwrap_or_default();
    let Ok(folder) = folder.canonicalize() else { return Ok(description) };
    let (root, logs) = root_of(&folder, &description, &here);
    if root != here {
        let RunFolders { checkpoints, .. } = &mut description.run;
        *checkpoints = root.join(&checkpoints);
        description.run.logs = root.join(logs);
    }
    Ok(description)
}

fn enter(folder: &Path) -> Result<Description, Refusal> {
    let mut description = described(folder)?;
    let here = std::env::current_dir().unwrap_or_default();
    let Ok(folder) = folder.canonicalize() else { return Ok(description) };
    let (root, logs) = root_of(&folder, &description, &here);
    description.run.logs = logs;
    if root != here {
        std::env::set_current_dir(&root).map_err(|error| {
            let page = format!("error: cannot change to `{}`\n  why: {error}", root.display());
            Refusal::new(exit::STORAGE, page)
        })?;
        to_stderr(&format!("the paths of this run begin at `{}`", root.display()));
    }
    Ok(description)
}

/// What the newest start of the run in `folder` wrote down.
pub(crate) fn described(folder: &Path) -> Result<Description, Refusal> {
    let path = newest_of(folder, DESCRIPTION);
    let unusable = |why: String| {
        let page = format!("error: `{}` cannot be used: {why}", path.display());
        Refusal::new(exit::CHECKPOINT, page)
    };
    let bytes = std::fs::read(&path).map_err(|error| unusable(error.to_string()))?;
    let stored: Stored =
        serde_json::from_slice(&bytes).map_err(|error| unusable(error.to_string()))?;
    if stored.format > FORMAT {
        let found = stored.format;
        return Err(unusable(format!("it has format {found}; this ddprun reads up to {FORMAT}")));
    }
    let plan = StoredPlan::of(&stored.plan).map_err(|error| unusable(error.to_string()))?;
    Ok(Description { run: stored.run, plan, started_in: stored.started_in })
}

/// The experiment of the run's newest start, and the file that it is in.
pub(crate) fn stored_experiment(run: &RunFolders) -> Result<(PathBuf, String), Refusal> {
    let path = newest_of(&run.logs, RESOLVED);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(error) => {
            let page = format!("error: `{}` cannot be read: {error}", path.display());
            Err(Refusal::new(exit::CHECKPOINT, page))
        }
    }
}

/// Where the paths of the run found in `folder` begin, and its log folder from there. A project
/// that was moved or copied as a whole is found by the end of the folder's path; a log folder that
/// stands alone belongs to the folder in which the run was started.
fn root_of(folder: &Path, description: &Description, here: &Path) -> (PathBuf, PathBuf) {
    let Description { run, started_in, .. } = description;
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

/// The folder of the checkpoints of the run in `logs`, a whole path, if it is there and no link.
pub(crate) fn checkpoints_of(logs: &Path) -> Result<Option<PathBuf>, Refusal> {
    if !newest_of(logs, DESCRIPTION).is_file() {
        return Ok(None);
    }
    let folder = seen_from_here(logs)?.run.checkpoints;
    let is_own = folder.is_dir() && !folder.is_symlink();
    Ok(folder.canonicalize().ok().filter(|_| is_own))
}

/// The weights that the run in `logs` started from, a whole path, if they are still there.
pub(crate) fn weights_before(logs: &Path) -> Option<PathBuf> {
    let description = described(logs).ok()?;
    let here = std::env::current_dir().unwrap_or_default();
    let (root, _) = root_of(&logs.canonicalize().ok()?, &description, &here);
    root.join(description.plan.pretrained()?).canonicalize().ok()
}

/// What a run does about data other than those that it began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherData {
    /// It does not go on.
    Refused,
    /// It goes on with them, as far as its model can.
    Accepted,
}

/// What a start writes down.
pub(crate) struct Start<'a> {
    /// The experiment's file.
    pub(crate) source: &'a Path,
    /// The experiment with everything filled in.
    pub(crate) resolved: String,
    pub(crate) plan: &'a Plan,
    pub(crate) data: Fingerprint,
}

/// Compares the data of a run that goes on with those that it began with, and says what differs. A
/// new run has none.
pub(crate) fn compare_data(
    run: &RunFolders,
    start: &Start<'_>,
    other: OtherData,
) -> Result<(), Refusal> {
    if newest_start(&run.logs) == 0 {
        return Ok(());
    }
    let stored = described(&run.logs)?.plan;
    let earlier = stored.current();
    let kept = Fingerprint::read(&newest_of(&run.logs, DATA)).map_err(|error| unusable(&error))?;
    let is_known = kept.is_some();
    let then = kept.or_else(|| earlier.map(|plan| Fingerprint::of_plan(&plan.data)));
    let Some(then) = then else {
        to_stderr("note: this run was started by an older ddprun: its data could not be compared");
        return Ok(());
    };
    let differences = start.data.differences(&then);
    if differences.is_empty() {
        if !is_known {
            to_stderr(
                "note: this run was started by an older ddprun: its data were compared by counts \
                 and classes only",
            );
        }
        return Ok(());
    }
    let error = data::Error::Changed { differences: differences.clone() };
    if other == OtherData::Refused {
        return Err(unusable(&error));
    }
    if let Some(what) = earlier.and_then(|earlier| another_model(start.plan, earlier)) {
        let page = format!("{}\n  why: {what}", Refusal::of(exit::DATA, &error, None));
        return Err(Refusal::new(exit::DATA, page + "\n  do: start a new run"));
    }
    for difference in differences {
        to_stderr(&format!("accepted: {difference}"));
    }
    let Some(earlier) = earlier else { return Ok(()) };
    let (now, then) = (&start.plan.length, &earlier.length);
    if now.steps_per_epoch != then.steps_per_epoch {
        let (now, then) = (now.steps_per_epoch, then.steps_per_epoch);
        to_stderr(&format!("changed: steps per epoch: {then} -> {now}"));
    }
    Ok(())
}

/// Why weights that were trained as in `then` do not fit into the model of `now`.
pub(crate) fn another_model(now: &Plan, then: &Plan) -> Option<String> {
    let (now, then) = (&now.model, &then.model);
    let differ = |now: String, then: String| {
        (now != then).then(|| format!("the model of this run has {then}, but the data needs {now}"))
    };
    let outputs = |model: &ModelPlan| format!("{} outputs", model.outputs);
    let input = |model: &ModelPlan| format!("inputs of shape {:?}", model.input);
    let target = |model: &ModelPlan| format!("targets of shape {:?}", model.target);
    differ(outputs(now), outputs(then))
        .or_else(|| differ(input(now), input(then)))
        .or_else(|| differ(target(now), target(then)))
}

fn unusable(error: &data::Error) -> Refusal {
    Refusal::of(worker::of_data(error), error, error.help())
}

/// Writes down what a start of the run is, if that differs from what the start before it wrote.
pub(crate) fn describe(run: &RunFolders, start: &Start<'_>) -> Result<(), files::Error> {
    let newest = newest_start(&run.logs);
    let path = |name: &str| of_start(&run.logs, name, newest + 1);
    let description = Stored {
        format: FORMAT,
        run: run.clone(),
        plan: serde_json::to_value(start.plan).unwrap_or_default(),
        // A path that is no text has no written form.
        started_in: std::env::current_dir().ok().filter(|folder| folder.to_str().is_some()),
    };
    let description = serde_json::to_vec_pretty(&description).unwrap_or_default();
    let is_as_before = |name: &str, bytes: &[u8]| {
        newest > 0 && std::fs::read(newest_of(&run.logs, name)).is_ok_and(|old| old == bytes)
    };
    let data = start.data.written();
    if newest > 0 && !run.logs.join(DATA).is_file() {
        // A run of an earlier version: what the data are now is what they must be from now on.
        files::write_atomic(&run.logs.join(DATA), &data)?;
    }
    let resolved = start.resolved.as_bytes();
    let has_same_data = is_as_before(DATA, &data);
    if has_same_data && is_as_before(DESCRIPTION, &description) && is_as_before(RESOLVED, resolved)
    {
        // Its time says when the run was started last.
        return files::touch(&newest_of(&run.logs, DESCRIPTION));
    }
    match std::fs::read(start.source) {
        Ok(text) if newest == 0 => files::write_atomic(&run.logs.join("experiment.toml"), &text)?,
        // On a resume it is what an earlier start has resolved.
        _ => {}
    }
    if !has_same_data {
        files::write_atomic(&path(DATA), &data)?;
    }
    files::write_atomic(&path(DESCRIPTION), &description)?;
    // Last: a folder that has it is a run, which can be resumed.
    files::write_atomic(&path(RESOLVED), resolved)
}
