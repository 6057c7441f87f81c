//! A launcher starts its ranks again -> the run that they had begun, if it can be told for certain.
//!
//! A run remembers in `launch.json` by whom it was launched, and what was asked for. A launcher's
//! first attempt always begins a new run.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::{self, Loaded};
use crate::files;
use crate::kinds::Kinds;
use crate::launch::{LaunchId, Role, launch_ids};
use crate::plan::RunFolders;
use crate::record::{RESOLVED, to_stderr};
use crate::runs::{RUN, StoredRun};
use crate::session::experiment::{Origin, Prepared};
use crate::session::request::RunRequest;
use crate::session::resume::{self, Environment, ResumedRun};
use crate::session::run_folder::{OwnedRun, unwritable};
use crate::user_error::{ErrorPage, ExitCode};

/// In the folder of a run's logs.
const FILE: &str = "launch.json";
/// Version of its form.
const FORMAT: u32 = 1;

/// By whom a run was launched.
#[derive(Clone, Serialize, Deserialize)]
struct Note {
    format: u32,
    /// Innermost first.
    launches: Vec<LaunchId>,
    /// Hash of the experiment as it was asked for: one launch may begin several.
    asked: String,
}

/// Makes the run that is asked for, or takes it up: that with the id `continued`, if other machines
/// go on with it. Its folder says by whom it was launched.
pub(crate) fn open(request: &RunRequest, continued: Option<&str>) -> Result<OwnedRun, ErrorPage> {
    let run = match continued {
        Some(id) => request.open_again(id)?,
        None => request.open()?,
    };
    note(&run.folders, &request.prepared)?;
    Ok(run)
}

/// Writes into the folder of a run by whom it was launched.
pub(crate) fn note(run: &RunFolders, prepared: &Prepared) -> Result<(), ErrorPage> {
    let launches = launch_ids();
    if launches.is_empty() {
        return Ok(());
    }
    let path = run.logs.join(FILE);
    // What was asked for first: `ddprun resume` names the run, and asks for nothing.
    let asked =
        read(&path).map_or_else(|| experiment_hash(&prepared.loaded), |before| Ok(before.asked))?;
    let note = Note { format: FORMAT, launches, asked };
    let text = serde_json::to_vec_pretty(&note).unwrap_or_default();
    files::write_atomic(&path, &text).map_err(unwritable)
}

/// The run that this launch had begun before its launcher started the ranks again, on as many ranks
/// as there are now; `None` if there is none, or this is its first attempt.
///
/// # Errors
///
/// There may be one, but that cannot be known; or it cannot go on here.
pub(crate) fn begun(
    loaded: &Loaded,
    origin: Origin<'_>,
    kinds: &Kinds,
) -> Result<Option<RunRequest>, ErrorPage> {
    let launches = launch_ids();
    let again: Vec<&LaunchId> = launches.iter().filter(|launch| launch.may_be_again()).collect();
    let Some(launch) = again.first() else { return Ok(None) };
    let asked = experiment_hash(loaded)?;
    let logs = loaded.experiment.logging.dir.join(loaded.name());
    let notes: Vec<_> = notes(&logs).filter(|(_, note)| note.asked == asked).collect();
    match choose(&again, &notes) {
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

/// Says it once for all ranks of a launcher.
fn say((role, _): Origin<'_>, words: &str) {
    if !matches!(role, Role::Foreign(place) if !place.rank.is_first()) {
        to_stderr(words);
    }
}

/// The run that the job called `id` began, of those below `logs`.
pub fn run_of_job(logs: &Path, id: &str) -> Option<PathBuf> {
    notes(logs).find(|(_, note)| note.launches.iter().any(|l| l.is_job(id))).map(|(run, _)| run)
}

/// Which run goes on.
enum Choice<'a> {
    Of(&'a LaunchId, &'a Path),
    None,
    Unclear(&'a LaunchId, Vec<&'a Path>),
}

/// The only run of a launch, innermost first. One that may be of a launch, and may not, must not be
/// passed over: it would lie there while the launcher pays for another.
fn choose<'a>(again: &[&'a LaunchId], notes: &'a [(PathBuf, Note)]) -> Choice<'a> {
    let of = |launch: &LaunchId, wanted: Option<bool>| -> Vec<&'a Path> {
        let is_meant = |note: &Note| note.launches.iter().any(|l| launch.continues(l) == wanted);
        notes.iter().filter(|(_, note)| is_meant(note)).map(|(path, _)| path.as_path()).collect()
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
    let text =
        config::resolved(&experiment).map_err(|error| ErrorPage::of(ExitCode::Bug, &error))?;
    Ok(blake3::hash(text.as_bytes()).to_hex().to_string())
}

/// The notes of all runs below `logs`, by their folders, oldest first. What cannot be read, or is
/// not understood, is none.
fn notes(logs: &Path) -> impl Iterator<Item = (PathBuf, Note)> + use<> {
    let entries = std::fs::read_dir(logs).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort();
    let runs = folders.into_iter().filter(|folder| folder.join(RESOLVED).is_file());
    runs.filter_map(|folder| read(&folder.join(FILE)).map(|note| (folder, note)))
}

fn read(path: &Path) -> Option<Note> {
    let note: Note = serde_json::from_slice(&files::read(path).ok()?).ok()?;
    (note.format <= FORMAT).then_some(note)
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

    /// Which of some runs goes on, that were launched like this.
    #[track_caller]
    fn check(again: &[&LaunchId], runs: &[(&str, Vec<LaunchId>)], expected: &str) {
        let note = |launches: &Vec<LaunchId>| Note {
            format: FORMAT,
            launches: launches.clone(),
            asked: String::new(),
        };
        let notes: Vec<_> =
            runs.iter().map(|(name, launches)| (PathBuf::from(name), note(launches))).collect();
        let shown = match choose(again, &notes) {
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
