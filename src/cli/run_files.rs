//! What a run's folder keeps of its starts, and where its paths begin.
//!
//! ```text
//! experiment.toml  run.json    resolved.toml    data.json      the first start: as asked, as decided, as found
//!                  run.2.json  resolved.2.toml  (data.2.json)  the next one that changed something
//! ```

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::checkpoint;
use crate::cli::{Refusal, find_run, to_stderr};
use crate::data::{self, Fingerprint};
use crate::files;
use crate::plan::{ModelPlan, Plan, RunFolders};
use crate::record::{
    DATA, DESCRIPTION, DESCRIPTION_FORMAT as FORMAT, RESOLVED, newest_of, newest_start, of_start,
};
use crate::runs::{self, Stored, StoredRun};
use crate::worker::{self, exit};

/// The run that `word` names ([`find_run::run`]). Goes to where its paths begin, so that it is what
/// it was wherever it is called from.
pub(crate) fn enter_run(word: Option<&str>) -> Result<StoredRun, Refusal> {
    enter_found(&find_run::run(word)?)
}

/// As [`enter_run`]; of a sweep its best trial.
pub(crate) fn enter_best_run(word: Option<&str>) -> Result<StoredRun, Refusal> {
    enter_found(&find_run::best_run(word)?)
}

/// As [`enter_run`]: that of this log folder.
pub(crate) fn enter_found(folder: &Path) -> Result<StoredRun, Refusal> {
    let (stored, root) = StoredRun::rooted(folder).map_err(|error| unreadable(&error))?;
    if let Some(root) = root {
        std::env::set_current_dir(&root).map_err(|error| {
            let page = format!("error: cannot change to `{}`\n  why: {error}", root.display());
            Refusal::new(exit::STORAGE, page)
        })?;
        to_stderr(&format!("the paths of this run begin at `{}`", root.display()));
    }
    Ok(stored)
}

/// What the newest start of the run in `folder` wrote down.
pub(crate) fn described(folder: &Path) -> Result<StoredRun, Refusal> {
    StoredRun::read(folder).map_err(|error| unreadable(&error))
}

/// A run whose files cannot be used.
pub(crate) fn unreadable(error: &runs::Error) -> Refusal {
    Refusal::of(exit::CHECKPOINT, error, error.help())
}

/// The experiment of the run's newest start, and the file that it is in.
pub(crate) fn stored_experiment(run: &RunFolders) -> Result<(PathBuf, String), Refusal> {
    let path = newest_of(&run.logs, RESOLVED);
    match files::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(error) => {
            let page = format!("error: `{}` cannot be read: {error}", path.display());
            Err(Refusal::new(exit::CHECKPOINT, page))
        }
    }
}

/// The folder that the run in `logs` says its checkpoints are in, which may be gone.
pub(crate) fn checkpoints_folder(logs: &Path) -> Option<PathBuf> {
    Some(StoredRun::seen_from_here(logs).ok()?.run.checkpoints)
}

/// The folder of the checkpoints of the run in `logs`, a whole path, if it is there and no link.
pub(crate) fn checkpoints_of(logs: &Path) -> Result<Option<PathBuf>, Refusal> {
    if !newest_of(logs, DESCRIPTION).is_file() {
        return Ok(None);
    }
    let stored = StoredRun::seen_from_here(logs).map_err(|error| unreadable(&error))?;
    let folder = stored.run.checkpoints;
    let is_own = folder.is_dir() && !folder.is_symlink();
    Ok(folder.canonicalize().ok().filter(|_| is_own))
}

/// The other run whose checkpoints these are, of whose logs the folder `logs`, a whole path, is a
/// copy.
pub(crate) fn other_owner(checkpoints: &Path, logs: &Path) -> Option<PathBuf> {
    let owner = runs::run_of(checkpoints, Path::new(find_run::LOGS));
    // One folder may be seen at two places.
    let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    let is_other = |owner: &PathBuf| owner != logs && identity(owner) != identity(logs);
    owner.and_then(|owner| owner.canonicalize().ok()).filter(is_other)
}

/// Refuses checkpoints that are not this run's: its logs may be a copy, and their description, which
/// may have come from somebody else, may name any folder.
pub(crate) fn refuse_checkpoints_of_others(run: &RunFolders) -> Result<(), Refusal> {
    let whole = (run.logs.canonicalize().ok()).zip(run.checkpoints.canonicalize().ok());
    let Some((logs, checkpoints)) = whole.filter(|(logs, checkpoints)| logs != checkpoints) else {
        return Ok(());
    };
    let [here, there] = [&run.logs, &run.checkpoints].map(|folder| folder.display());
    let refuse = |what: String, help: &str| {
        Err(Refusal::new(exit::REFUSED, format!("error: {what}\n  do: {help}")))
    };
    if let Some(owner) = other_owner(&checkpoints, &logs) {
        let owner = owner.display();
        return refuse(
            format!("`{here}` is a copy of `{owner}`, which owns the checkpoints in `{there}`"),
            "resume that run, or start a new one from its weights with `model.pretrained=run:...`",
        );
    }
    let is_named = checkpoints.file_name() == Some(run.id.as_ref());
    let is_outside = project_of(&logs).is_some_and(|project| !checkpoints.starts_with(project));
    let foreign = || checkpoint::contents(&checkpoints, &[runs::LINK_TO_LOGS]).foreign;
    let may_be_anyones = is_outside && !foreign().is_empty();
    if is_named && !may_be_anyones {
        return Ok(());
    }
    refuse(
        format!("`{here}` names `{there}` as its checkpoints, which is not a folder of this run"),
        "if the run is yours, move its checkpoints into a folder that is named like the run",
    )
}

/// The project of the run in `logs`, a whole path: by the end of that path, or else the current
/// folder. Where the run says that it was started does not count: it may have come from elsewhere.
pub(crate) fn project_of(logs: &Path) -> Option<PathBuf> {
    let named = StoredRun::read(logs).ok()?.run.logs;
    let named: PathBuf = named.components().filter(|part| part.as_os_str() != ".").collect();
    if named.is_relative() && logs.ends_with(&named) {
        return logs.ancestors().nth(named.components().count()).map(Path::to_owned);
    }
    std::env::current_dir().and_then(std::fs::canonicalize).ok()
}

/// The weights that the run in `logs` started from, a whole path, if they are still there.
pub(crate) fn weights_before(logs: &Path) -> Option<PathBuf> {
    let description = described(logs).ok()?;
    let here = std::env::current_dir().unwrap_or_default();
    let root = description.root(&logs.canonicalize().ok()?, &here);
    root.join(description.plan.model.pretrained?).canonicalize().ok()
}

/// What a run does about data other than those that it began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherData {
    /// It does not go on.
    Refused,
    /// It goes on with them, as far as its model can.
    Accepted,
    /// Nothing is kept that was trained on any: it begins again with those that there are.
    Begun,
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
    if newest_start(&run.logs) == 0 || other == OtherData::Begun {
        return Ok(());
    }
    let before = described(&run.logs)?.plan;
    let kept = Fingerprint::read(&newest_of(&run.logs, DATA)).map_err(|error| unusable(&error))?;
    let is_known = kept.is_some();
    let then = kept.unwrap_or_else(|| Fingerprint::of_plan(&before.data));
    let differences = start.data.differences(&then);
    if differences.is_empty() {
        if !is_known {
            to_stderr(
                "note: the run has no `data.json` any more: its data were compared by counts and \
                 classes only",
            );
        }
        return Ok(());
    }
    let error = data::Error::Changed { differences: differences.clone() };
    if other == OtherData::Refused {
        return Err(unusable(&error));
    }
    if let Some(what) = another_model(start.plan, &before) {
        let page = format!("{}\n  why: {what}", Refusal::of(exit::DATA, &error, None));
        return Err(Refusal::new(exit::DATA, page + "\n  do: start a new run"));
    }
    for difference in differences {
        to_stderr(&format!("accepted: {difference}"));
    }
    let (now, then) = (&start.plan.length, &before.length);
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
        newest > 0 && files::read(&newest_of(&run.logs, name)).is_ok_and(|old| old == bytes)
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
