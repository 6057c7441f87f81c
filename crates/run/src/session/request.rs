//! The run that is asked for: a new one, one that is resumed, or the one that this launch had begun
//! before its launcher started the ranks again.
//!
//! `launch.json` of a run names its launches, and hashes what was asked for. A launcher's first
//! attempt always begins a new run.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::Loaded;
use crate::files;
use crate::kinds::Kinds;
use crate::launch::{LaunchId, Role, launch_ids};
use crate::plan::{Memory, RunFolders};
use crate::record::{RESOLVED, newest_of, to_stderr};
use crate::runs::{RUN, StoredRun};
use crate::session::experiment::load;
use crate::session::mirror;
use crate::session::prepare::{LaunchOrigin, Prepared, prepare_new};
use crate::session::resume::{self, Environment, ResumedRun};
use crate::session::run_folder::{
    OtherData, OwnedRun, folders_of, open_run, refuse_sweep, to_toml, unwritable,
};
use crate::user_error::{ErrorPage, ExitCode};

/// The run to start for the experiment at `path`: the one that this launch had begun before its
/// launcher started it again, or else a new one.
pub fn new_or_relaunched(
    path: &Path,
    changes: &[String],
    origin: LaunchOrigin<'_>,
    kinds: &Kinds,
) -> Result<RunRequest, ErrorPage> {
    let loaded = load(path, changes, kinds)?;
    if let Some(request) = relaunched(&loaded, origin, kinds)? {
        return Ok(request);
    }
    refuse_sweep(&loaded)?;
    if origin.nodes == 1 {
        mirror::check_mirror(&loaded)?;
    }
    Ok(RunRequest::new(prepare_new(loaded, origin, kinds)?, None))
}

/// A run to be started.
pub struct RunRequest {
    pub(crate) prepared: Prepared,
    /// The run that is resumed; a new one has no folders yet.
    resumed: Option<ResumedRun>,
}

impl RunRequest {
    /// A run that goes on.
    pub fn of(prepared: Prepared, resumed: ResumedRun) -> Self {
        Self::new(prepared, Some(resumed))
    }

    /// Prints warnings about the plan.
    fn new(prepared: Prepared, resumed: Option<ResumedRun>) -> Self {
        warn_about(&prepared);
        Self { prepared, resumed }
    }

    /// Makes the run's folders, or takes possession of those of the run that is resumed: of the run
    /// with the id `continued`, if this is node 0 and the other machines go on with that one. Its
    /// folder then names this launch.
    pub(crate) fn open(&self, continued: Option<&str>) -> Result<OwnedRun, ErrorPage> {
        let run = match (continued, &self.resumed) {
            (Some(id), resumed) => self.continued(id, resumed.as_ref())?.own(&self.prepared),
            (None, Some(run)) => run.own(&self.prepared),
            (None, None) => open_run(&self.prepared),
        }?;
        write_launches(&run.folders, &self.prepared)?;
        Ok(run)
    }

    /// The run `id`, where this process takes the place of the node 0 that had made it.
    fn continued(&self, id: &str, resumed: Option<&ResumedRun>) -> Result<ResumedRun, ErrorPage> {
        let run = match resumed {
            Some(run) if run.folders.id == id => run.clone(),
            Some(run) => {
                return Err(not_continued(
                    id,
                    &format!("node 0 was asked to resume {}", run.folders.id),
                ));
            }
            None => ResumedRun::of(folders_of(&self.prepared.plan, id)),
        };
        let logs = &run.folders.logs;
        let is_name = id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_name || !newest_of(logs, RESOLVED).is_file() {
            return Err(not_continued(id, &format!("there is none in `{}`", logs.display())));
        }
        to_stderr(&format!(
            "the other machines continue run {id}: so does node 0, from its newest checkpoint"
        ));
        Ok(run)
    }

    /// Policy for data that differ from those that the run began with.
    pub fn other_data(&self) -> OtherData {
        self.resumed.as_ref().map_or(OtherData::Refused, |run| run.data)
    }
}

/// Prints warnings about a plan, once for all ranks of a machine. Rank 0 records those about the
/// data.
fn warn_about(Prepared { plan, facts, .. }: &Prepared) {
    let warnings = plan.warnings(facts, &Memory::of(plan, None));
    let is_own = |warning: &&String| facts.local_rank == 0 && !plan.data.notes.contains(warning);
    for warning in warnings.iter().filter(is_own) {
        to_stderr(&format!("warning: {warning}"));
    }
}

fn not_continued(id: &str, why: &str) -> ErrorPage {
    let page = format!(
        "error: the other machines continue run {id}, but node 0 cannot\n  why: {why}\n  do: stop \
         ddprun on all machines, and start it on all again"
    );
    ErrorPage::new(ExitCode::Refused, page)
}

/// File in a run's folder of logs.
const FILE: &str = "launch.json";
/// Format version of the file.
const FORMAT: u32 = 1;

/// The launches of a run.
#[derive(Clone, Serialize, Deserialize)]
struct LaunchRecord {
    format: u32,
    /// Innermost first.
    launches: Vec<LaunchId>,
    /// Hash of the experiment as it was asked for: one launch may begin several.
    asked: String,
}

/// Writes `launch.json` into the folder of a run, if another program launched it.
pub(crate) fn write_launches(run: &RunFolders, prepared: &Prepared) -> Result<(), ErrorPage> {
    let launches = launch_ids();
    if launches.is_empty() {
        return Ok(());
    }
    let path = run.logs.join(FILE);
    // What was asked for first: `ddprun resume` names the run, and asks for nothing.
    let asked =
        read(&path).map_or_else(|| experiment_hash(&prepared.loaded), |before| Ok(before.asked))?;
    let record = LaunchRecord { format: FORMAT, launches, asked };
    let text = serde_json::to_vec_pretty(&record).unwrap_or_default();
    files::write_atomic(&path, &text).map_err(unwritable)
}

/// The run that this launch had begun before its launcher started the ranks again, on as many ranks
/// as there are now; `None` if there is none, or this is its first attempt.
///
/// # Errors
///
/// There may be one, but that cannot be known; or it cannot go on here.
fn relaunched(
    loaded: &Loaded,
    origin: LaunchOrigin<'_>,
    kinds: &Kinds,
) -> Result<Option<RunRequest>, ErrorPage> {
    let launches = launch_ids();
    let again: Vec<&LaunchId> = launches.iter().filter(|launch| launch.may_be_again()).collect();
    let Some(launch) = again.first() else { return Ok(None) };
    let asked = experiment_hash(loaded)?;
    let logs = loaded.experiment.logging.dir.join(loaded.name());
    let earlier: Vec<_> = launch_records(&logs).filter(|(_, run)| run.asked == asked).collect();
    match choose(&again, &earlier) {
        Choice::Of(launch, folder) => {
            let stored = StoredRun::read(folder)?;
            let id = &stored.run.id;
            say(
                origin,
                &format!("{}: continuing run {id} from its newest checkpoint", launch.again()),
            );
            let devices = serde_json::to_string(&loaded.experiment.distributed.devices);
            let devices = format!("distributed.devices={}", devices.unwrap_or_default());
            let prepared =
                resume::resumed(&stored, &[devices], Environment::Ignored, origin, kinds)?;
            Ok(Some(RunRequest::of(prepared, ResumedRun::of(stored.run))))
        }
        Choice::None => {
            if launch.attempt > 0 {
                let (again, logs) = (launch.again(), logs.display());
                let what = format!("no earlier run found in `{logs}`; starting a new one");
                say(origin, &format!("{again}: {what}"));
            }
            Ok(None)
        }
        Choice::Unclear(launch, folders) => Err(unclear(launch, &folders)),
    }
}

/// Prints a line once for all ranks of a launcher.
fn say(origin: LaunchOrigin<'_>, words: &str) {
    if !matches!(origin.role, Role::Foreign(place) if !place.rank.is_first()) {
        to_stderr(words);
    }
}

/// The run that the job called `id` began, of those below `logs`.
pub fn run_of_job(logs: &Path, id: &str) -> Option<PathBuf> {
    let mut runs = launch_records(logs);
    runs.find(|(_, record)| record.launches.iter().any(|l| l.is_job(id))).map(|(run, _)| run)
}

/// The run that a launch continues.
enum Choice<'a> {
    Of(&'a LaunchId, &'a Path),
    None,
    Unclear(&'a LaunchId, Vec<&'a Path>),
}

/// The only run of a launch, innermost first. One that may be of a launch, and may not, must not be
/// passed over: it would lie there while the launcher pays for another.
fn choose<'a>(again: &[&'a LaunchId], runs: &'a [(PathBuf, LaunchRecord)]) -> Choice<'a> {
    let of = |launch: &LaunchId, wanted: Option<bool>| -> Vec<&'a Path> {
        let is_meant =
            |run: &LaunchRecord| run.launches.iter().any(|l| launch.continues(l) == wanted);
        runs.iter().filter(|(_, run)| is_meant(run)).map(|(path, _)| path.as_path()).collect()
    };
    for &launch in again {
        match of(launch, Some(true))[..] {
            [] => {}
            [folder] => return Choice::Of(launch, folder),
            _ => return Choice::Unclear(launch, of(launch, Some(true))),
        }
    }
    let mut unclear = again.iter().map(|&launch| (launch, of(launch, None)));
    match unclear.find(|(_, folders)| !folders.is_empty()) {
        Some((launch, folders)) => Choice::Unclear(launch, folders),
        None => Choice::None,
    }
}

fn unclear(launch: &LaunchId, folders: &[&Path]) -> ErrorPage {
    let LaunchId { launcher, id, .. } = launch;
    let list: Vec<String> = folders.iter().map(|path| format!("\n  {}", path.display())).collect();
    let page = format!(
        "error: {}, but cannot tell which run of `{id}` to continue:{}\n  \
         do: continue one with `ddprun resume RUN` under {launcher}",
        launch.again(),
        list.concat(),
    );
    ErrorPage::new(ExitCode::Refused, page)
}

/// Hashes the experiment as it was written, before anything is decided.
fn experiment_hash(loaded: &Loaded) -> Result<String, ErrorPage> {
    let mut experiment = loaded.experiment.clone();
    if let Some(word) = loaded.word("model.pretrained").filter(|word| word.starts_with(RUN)) {
        // The best checkpoint of the other run may be another one by now.
        experiment.model.pretrained = Some(PathBuf::from(word));
    }
    Ok(blake3::hash(to_toml(&experiment)?.as_bytes()).to_hex().to_string())
}

/// The launches of all runs below `logs`, by their folders, oldest first. Files that cannot be
/// read, or have a newer format, are skipped.
fn launch_records(logs: &Path) -> impl Iterator<Item = (PathBuf, LaunchRecord)> + use<> {
    let entries = std::fs::read_dir(logs).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort();
    let runs = folders.into_iter().filter(|folder| folder.join(RESOLVED).is_file());
    runs.filter_map(|folder| read(&folder.join(FILE)).map(|record| (folder, record)))
}

fn read(path: &Path) -> Option<LaunchRecord> {
    let record: LaunchRecord = serde_json::from_slice(&files::read(path).ok()?).ok()?;
    (record.format <= FORMAT).then_some(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Launcher;

    fn torchrun(mark: Option<&str>, attempt: u32) -> LaunchId {
        let (mark, host) = (mark.map(str::to_owned), "h".to_owned());
        LaunchId { launcher: Launcher::Torchrun, id: "none".to_owned(), mark, host, attempt }
    }

    fn slurm(attempt: u32) -> LaunchId {
        let (id, mark) = ("7".to_owned(), Some("batch".to_owned()));
        LaunchId { launcher: Launcher::Slurm, id, mark, host: "h".to_owned(), attempt }
    }

    /// Checks which of `runs` goes on, each with its launches.
    #[track_caller]
    fn check(again: &[&LaunchId], runs: &[(&str, Vec<LaunchId>)], expected: &str) {
        let record = |launches: &Vec<LaunchId>| LaunchRecord {
            format: FORMAT,
            launches: launches.clone(),
            asked: String::new(),
        };
        let runs: Vec<_> =
            runs.iter().map(|(name, launches)| (PathBuf::from(name), record(launches))).collect();
        let shown = match choose(again, &runs) {
            Choice::Of(_, folder) => folder.display().to_string(),
            Choice::None => "new".to_owned(),
            Choice::Unclear(_, folders) => format!("unclear: {folders:?}"),
        };
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_run_of_this_launch_goes_on_and_that_of_another_with_the_same_id_does_not() {
        let (ours, other) = (torchrun(Some("x"), 0), torchrun(Some("y"), 0));
        let again = torchrun(Some("x"), 1);
        let runs = [("a", vec![other.clone()]), ("b", vec![ours.clone()])];
        check(&[&again], &runs, "b");
        check(&[&again], &[("a", vec![other])], "new");
        check(&[&again], &[], "new");
        check(
            &[&again],
            &[("b", vec![ours.clone()]), ("c", vec![ours])],
            "unclear: [\"b\", \"c\"]",
        );
    }

    #[test]
    fn a_run_that_may_be_meant_is_not_passed_over() {
        let run = ("a", vec![torchrun(Some("x"), 0)]);
        check(&[&torchrun(None, 1)], &[run], "unclear: [\"a\"]");
    }

    #[test]
    fn a_launch_within_a_job_that_began_again_finds_the_run_of_the_job() {
        // The job was started again, and within it torchrun for the first time or once more.
        let run = ("a", vec![torchrun(Some("x"), 2), slurm(0)]);
        check(&[&slurm(1)], std::slice::from_ref(&run), "a");
        check(&[&torchrun(Some("y"), 1), &slurm(1)], &[run], "a");
    }
}
