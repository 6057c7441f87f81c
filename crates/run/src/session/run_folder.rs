//! The files of each start in a run's folder, and the folder that paths are relative to.
//!
//! ```text
//! experiment.toml  run.json    resolved.toml    data.json      the first start: as asked, as
//! decided, as found
//!                  run.2.json  resolved.2.toml  (data.2.json)  the next one that changed something
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use crate::checkpoint::{self, OpenCheckpoint};
use crate::config::{self, Experiment, Loaded};
use crate::data::{self, Fingerprint, SurveyRequest};
use crate::files::{self, RunLock};
use crate::launch::{self, PreparedRun};
use crate::plan::{ModelPlan, Plan, RunFolders};
use crate::record::{
    DATA, DESCRIPTION, DESCRIPTION_FORMAT as FORMAT, ENVIRONMENT, Environment, RESOLVED, newest_of,
    newest_start, of_start, to_stderr,
};
use crate::runs::{self, Stored, StoredRun, link_logs, other_owner, project_of};
use crate::session::prepare::Prepared;
use crate::sweep;
use crate::user_error::{ErrorPage, ExitCode};

/// Policy for data that differ from those that a run began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherData {
    /// It does not go on.
    Refused,
    /// It goes on with them, as far as its model can.
    Accepted,
    /// Nothing is kept that was trained on any: it begins again with those that there are.
    Begun,
}

/// Folders of a run that this process alone may write.
pub struct OwnedRun {
    pub folders: RunFolders,
    /// True if the run was begun before.
    pub is_resumed: bool,
    /// Writes `environment.json` while the ranks start.
    environment: Option<JoinHandle<()>>,
    /// Absent on machines that only take part.
    _lock: Option<RunLock>,
}

impl OwnedRun {
    /// A run that another process has made.
    pub(crate) fn of_another(folders: RunFolders) -> Self {
        Self { folders, is_resumed: false, environment: None, _lock: None }
    }

    /// The run as its ranks receive it.
    pub(crate) fn for_ranks(&self, plan: Plan) -> PreparedRun {
        PreparedRun { plan, folders: self.folders.clone(), resume: self.is_resumed }
    }

    /// Waits until this process writes nothing more into the folders.
    pub(crate) fn wait_for_writer(&mut self) {
        if let Some(writer) = self.environment.take() {
            // A panic of the thread was printed by it.
            drop(writer.join());
        }
    }
}

impl Drop for OwnedRun {
    fn drop(&mut self) {
        self.wait_for_writer();
    }
}

/// Refuses a run whose name is that of a sweep: it would be among the trials, and go with them.
pub fn refuse_sweep(loaded: &Loaded) -> Result<(), ErrorPage> {
    let folder = loaded.experiment.logging.dir.join(loaded.name());
    if !sweep::is_of_sweep(&folder) {
        return Ok(());
    }
    let what = format!("`{}` holds a sweep", folder.display());
    let help = "choose another `experiment.name`: a run does not share the folder of a sweep";
    Err(loaded.problem("experiment.name", what).help(help).into())
}

/// Makes the folders of a new run.
pub(crate) fn open_run(prepared: &Prepared) -> Result<OwnedRun, ErrorPage> {
    let plan = &prepared.plan;
    remove_incomplete_starts(plan);
    let folders = folders_of(plan, &new_id());
    let start = begin(&folders, prepared, OtherData::Refused)?;
    // A sweep of this name may begin at the same moment.
    let named = plan.logging.dir.join(&plan.name);
    let _turn = files::take_turn(&named).map_err(unwritable)?;
    refuse_sweep(&prepared.loaded)?;
    let uninterrupted = launch::uninterrupted();
    let mut run = own_begun(folders, &start)?;
    if uninterrupted.ends() {
        run.wait_for_writer();
        // Nothing of a run that did not begin stays. What cannot be removed does no harm.
        for folder in [&run.folders.checkpoints, &run.folders.logs] {
            drop(files::remove_folder(folder));
            files::remove_empty_parent(folder);
        }
        drop(uninterrupted);
        return Ok(run);
    }
    uninterrupted.complete(format!("ddprun resume {}", RunFolders::word(&run.folders.logs)));
    Ok(run)
}

/// The folders of the run `id` of this experiment.
pub(crate) fn folders_of(plan: &Plan, id: &str) -> RunFolders {
    RunFolders {
        logs: plan.logging.dir.join(&plan.name).join(id),
        checkpoints: plan.checkpoint.dir.join(&plan.name).join(id),
        id: id.to_owned(),
    }
}

/// Takes possession of a run's folders and writes down what was asked, decided and found
/// (`run.json`), and what the machine is. A run that goes on does so with the data that it
/// began with, unless `other` are accepted.
pub fn own_run(
    folders: RunFolders,
    prepared: &Prepared,
    other: OtherData,
) -> Result<OwnedRun, ErrorPage> {
    let start = begin(&folders, prepared, other)?;
    own_begun(folders, &start)
}

fn own_begun(folders: RunFolders, start: &Start<'_>) -> Result<OwnedRun, ErrorPage> {
    let unwritable: fn(files::Error) -> ErrorPage = match newest_start(&folders.logs) {
        0 => unwritable,
        _ => unwritable_run,
    };
    // In this order: what a kill between the two leaves is found by its logs (`abandoned`).
    files::create_writable_folder(&folders.logs).map_err(unwritable)?;
    files::create_writable_folder(&folders.checkpoints).map_err(|error| {
        // Only an empty folder goes: records of an earlier start stay.
        files::remove_empty_folder(&folders.logs);
        unwritable(error)
    })?;
    let lock = RunLock::acquire(&folders.logs).map_err(unwritable)?;
    files::remove_stale_temporaries(&folders.logs).map_err(unwritable)?;
    files::remove_stale_temporaries(&folders.checkpoints).map_err(unwritable)?;
    link_logs(&folders).map_err(unwritable)?;
    pin_weights(&folders, start.plan)?;
    describe(&folders, start).map_err(unwritable)?;
    let environment = describe_environment(folders.logs.clone());
    Ok(OwnedRun { folders, is_resumed: false, environment, _lock: Some(lock) })
}

/// Keeps the checkpoint of another run that the run starts from: that run may go on and delete it
/// before this one has read it, and this one may begin again from it.
fn pin_weights(folders: &RunFolders, plan: &Plan) -> Result<(), ErrorPage> {
    let pinned = folders.checkpoints.join(checkpoint::PIN);
    let (Some(path), Some(planned)) = (&plan.model.pretrained, &plan.model.pretrained_checkpoint)
    else {
        return Ok(());
    };
    let is_planned = |opened: &OpenCheckpoint| opened.manifest.fingerprint() == planned.fingerprint;
    if checkpoint::open(&pinned).is_ok_and(|kept| is_planned(&kept)) {
        return Ok(());
    }
    match checkpoint::open(path) {
        Ok(opened) if is_planned(&opened) => {
            checkpoint::pin(&opened, &pinned).map_err(|error| match error {
                checkpoint::Error::Files(error) => unwritable(error),
                error => ErrorPage::of(ExitCode::Checkpoint, &error),
            })
        }
        // A run that has checkpoints of its own does not need it; the ranks of one that has not say
        // what is wrong.
        _ => Ok(()),
    }
}

/// This machine's folder in a run that another machine has made: the logs of its ranks, and what
/// the run is. The two may be one folder on a shared file system.
pub(crate) fn join_run(
    folders: RunFolders,
    prepared: &Prepared,
    other: OtherData,
) -> Result<OwnedRun, ErrorPage> {
    let start = begin(&folders, prepared, other)?;
    files::create_writable_folder(&folders.logs).map_err(unwritable)?;
    if files::lock_holder(&folders.logs).is_none() {
        // The folder is this machine's own: so that the run can be resumed on it too.
        describe(&folders, &start).map_err(unwritable)?;
    }
    Ok(OwnedRun::of_another(folders))
}

/// Collects what this start writes down, after generating data if the experiment asks for it. A run
/// that goes on does so with the data that it began with, unless `other` are accepted.
fn begin<'a>(
    folders: &RunFolders,
    prepared: &'a Prepared,
    other: OtherData,
) -> Result<Start<'a>, ErrorPage> {
    generate(prepared)?;
    let data = Fingerprint::of(&prepared.facts.data, prepared.source.as_ref())?;
    let (source, plan) = (prepared.loaded.path.as_path(), &prepared.plan);
    let resolved = to_toml(&plan.pin(prepared.loaded.experiment.clone()))?;
    let start = Start { source, resolved, plan, data };
    compare_data(folders, &start, other)?;
    Ok(start)
}

/// Generates the data that the experiment wants generated.
pub fn generate(prepared: &Prepared) -> Result<(), ErrorPage> {
    let request = SurveyRequest::of(&prepared.plan);
    Ok(prepared.source.generate(&request, &to_stderr)?)
}

/// An experiment as the text of its file.
pub fn to_toml(experiment: &Experiment) -> Result<String, ErrorPage> {
    config::resolved(experiment).map_err(|error| ErrorPage::of(ExitCode::Bug, &error))
}

/// Returns the differences between the present data and those that the run in `logs` began with, as
/// far as both are known. Generates data if the experiment asks for it.
pub fn other_data(logs: &Path, prepared: &Prepared) -> Vec<String> {
    let now = || {
        generate(prepared).ok()?;
        Fingerprint::of(&prepared.facts.data, prepared.source.as_ref()).ok()
    };
    let then = Fingerprint::read(&newest_of(logs, DATA)).ok().flatten();
    then.and_then(|then| Some(now()?.differences(&then))).unwrap_or_default()
}

/// Describes the machine beside the start of the ranks, which do not need it. A description that
/// cannot be written is no reason not to train; where no thread is to be had, it is not even tried.
fn describe_environment(logs: PathBuf) -> Option<JoinHandle<()>> {
    let describe = move || {
        if let Err(error) = Environment::measure().write(&logs) {
            to_stderr(&format!("warning: could not write environment.json: {error}"));
        }
    };
    std::thread::Builder::new().name("environment".into()).spawn(describe).ok()
}

#[expect(clippy::needless_pass_by_value, reason = "fits `map_err`")]
pub fn unwritable(error: files::Error) -> ErrorPage {
    let help = match error {
        files::Error::InUse { .. } => "wait for that process, or stop it",
        files::Error::Io { operation: "lock", .. } => {
            "mount the file system of this folder with locks (NFS: a lock manager, or \
             `local_lock=flock` where only one machine writes the folder, which is not so for a \
             shared sweep; Lustre: `flock`), or choose another folder with `logging.dir`: without \
             locks, two processes could write the same run"
        }
        _ if error.is_no_file() => "remove it, and run the command again",
        _ if error.is_out_of_space() => {
            "make room on that disk, or choose a folder on another one with `logging.dir` and \
             `checkpoint.dir`"
        }
        _ => "choose a folder that can be written, with `logging.dir` and `checkpoint.dir`",
    };
    let code = match error {
        files::Error::InUse { .. } => ExitCode::Refused,
        _ => ExitCode::Storage,
    };
    ErrorPage::of(code, &error).help(help)
}

/// [`unwritable`] for a run that goes on: it stays in its folders.
pub(crate) fn unwritable_run(error: files::Error) -> ErrorPage {
    if matches!(error, files::Error::InUse { .. } | files::Error::Io { operation: "lock", .. }) {
        return unwritable(error);
    }
    let help = if error.is_no_file() {
        "remove it, then `ddprun resume`"
    } else if error.is_out_of_space() {
        "make room, then `ddprun resume`: a run stays in its folders"
    } else {
        "make the folders of this run writable, or start a new run from its weights with \
         `model.pretrained` and another `logging.dir` and `checkpoint.dir`"
    };
    ErrorPage::of(ExitCode::Storage, &error).help(help)
}

/// Refuses checkpoints that are not this run's: its logs may be a copy, and their description,
/// which may have come from somebody else, may name any folder.
pub(crate) fn refuse_checkpoints_of_others(run: &RunFolders) -> Result<(), ErrorPage> {
    let whole = (run.logs.canonicalize().ok()).zip(run.checkpoints.canonicalize().ok());
    let Some((logs, checkpoints)) = whole.filter(|(logs, checkpoints)| logs != checkpoints) else {
        return Ok(());
    };
    let [here, there] = [&run.logs, &run.checkpoints].map(|folder| folder.display());
    let refuse = |what: String, help: &str| {
        Err(ErrorPage::new(ExitCode::Refused, format!("error: {what}\n  do: {help}")))
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

/// The experiment of the run's newest start, and the file that it is in.
pub fn stored_experiment(run: &RunFolders) -> Result<(PathBuf, String), ErrorPage> {
    let path = newest_of(&run.logs, RESOLVED);
    match files::read_to_string(&path) {
        Ok(text) => Ok((path, text)),
        Err(error) => {
            let page = format!("error: `{}` cannot be read: {error}", path.display());
            Err(ErrorPage::new(ExitCode::Checkpoint, page))
        }
    }
}

/// Contents of the files that a start writes.
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
) -> Result<(), ErrorPage> {
    if newest_start(&run.logs) == 0 || other == OtherData::Begun {
        return Ok(());
    }
    let before = StoredRun::read(&run.logs)?.plan;
    let kept = Fingerprint::read(&newest_of(&run.logs, DATA))?;
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
        return Err(error.into());
    }
    if let Some(what) = another_model(start.plan, &before) {
        let page = format!("{}\n  why: {what}", ErrorPage::of(ExitCode::Data, &error));
        return Err(ErrorPage::new(ExitCode::Data, page + "\n  do: start a new run"));
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

/// Returns the reason why weights trained with the plan `then` do not fit the model of `now`, if
/// any.
pub fn another_model(now: &Plan, then: &Plan) -> Option<String> {
    let shapes = |plan: &Plan| {
        let ModelPlan { outputs, input, target, .. } = &plan.model;
        [
            format!("{outputs} outputs"),
            format!("inputs of shape {input:?}"),
            format!("targets of shape {target:?}"),
        ]
    };
    let mut pairs = shapes(now).into_iter().zip(shapes(then));
    let (now, then) = pairs.find(|(now, then)| now != then)?;
    Some(format!("the model of this run has {then}, but the data needs {now}"))
}

/// Writes the files of a start, if they differ from those of the start before it.
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

/// Returns an id such as `20261120-134205-3f9a0`: the time in UTC, then in hexadecimal a 1,024th of
/// the second and a random number below 1,024, so that the last id in alphabetical order is the
/// newest on whichever machine.
pub fn new_id() -> String {
    id_at(jiff::Timestamp::now(), files::random())
}

fn id_at(time: jiff::Timestamp, random: u64) -> String {
    let fraction = u64::from(time.subsec_nanosecond().unsigned_abs()) * 1024 / 1_000_000_000;
    format!("{}-{:05x}", time.strftime("%Y%m%d-%H%M%S"), (fraction << 10) | (random & 0x3ff))
}

/// Files of a start that was killed early, besides those whose names begin with a dot.
const EARLY_FILES: [&str; 4] = ["experiment.toml", DATA, DESCRIPTION, ENVIRONMENT];
/// A start has locked its folder long before it is as old as this.
const GRACE_PERIOD: Duration = Duration::from_mins(1);

/// Removes the folders that earlier starts of the experiment have left in this way. One that cannot
/// be removed stays.
fn remove_incomplete_starts(plan: &Plan) {
    let [logs, checkpoints] =
        [&plan.logging.dir, &plan.checkpoint.dir].map(|folder| folder.join(&plan.name));
    let Ok(runs) = fs::read_dir(logs) else { return };
    for run in runs.flatten().filter(|run| is_abandoned(&run.path(), SystemTime::now())) {
        drop(files::remove_folder(&run.path()));
        // Nothing was saved: only an empty folder goes.
        files::remove_empty_folder(&checkpoints.join(run.file_name()));
    }
}

/// True if a start left `folder` before it had described its run. One that is under way has locked
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
    use std::path::Path;

    /// `TZ=Europe/Oslo` counts in lists.
    #[test]
    fn time_zones_are_known_by_name_where_the_system_has_them() {
        if Path::new("/usr/share/zoneinfo/Europe/Oslo").exists() {
            assert!(jiff::tz::TimeZone::get("Europe/Oslo").is_ok());
        }
    }

    #[test]
    fn ids_are_in_the_order_of_their_times_within_a_second_too() {
        let at = |milliseconds, random| {
            id_at(jiff::Timestamp::from_millisecond(milliseconds).unwrap(), random)
        };
        assert_eq!(at(1_795_000_000_500, 0x2bc), "20261118-110640-802bc");
        let times = [0, 1, 250, 999, 1000, 2500].map(|after| 1_795_000_000_000 + after);
        assert!(times.windows(2).all(|pair| at(pair[0], u64::MAX) < at(pair[1], 0)));
    }

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
