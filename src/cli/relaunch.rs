//! A launcher starts its ranks again -> the run that they had begun, if it can be told for certain.
//!
//! A run remembers in `launch.json` by whom it was launched, and what was asked for. A launcher's
//! first attempt always begins a new run.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cli::prepare::{Prepared, refused, resolved, unwritable, vocabulary};
use crate::cli::run_files::{described, stored_experiment};
use crate::cli::{Refusal, to_stderr};
use crate::config;
use crate::files;
use crate::kinds::Kinds;
use crate::launch::LaunchId;
use crate::launch::exit_code as exit;
use crate::plan::RunFolders;
use crate::record::RESOLVED;
use crate::runs::{RUN, StoredRun};

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

/// Writes into the folder of a run by whom it was launched.
pub(crate) fn note(
    run: &RunFolders,
    launches: &[LaunchId],
    prepared: &Prepared,
) -> Result<(), Refusal> {
    if launches.is_empty() {
        return Ok(());
    }
    let path = run.logs.join(FILE);
    // What was asked for first: `ddprun resume` names the run, and asks for nothing.
    let asked = read(&path).map_or_else(|| asked(prepared), |before| Ok(before.asked))?;
    let note = Note { format: FORMAT, launches: launches.to_vec(), asked };
    let text = serde_json::to_vec_pretty(&note).unwrap_or_default();
    files::write_atomic(&path, &text).map_err(unwritable)
}

/// The run that one of `launches` had begun before its launcher started the ranks again; `None` if
/// there is none, or this is its first attempt.
///
/// # Errors
///
/// There may be one, but that cannot be known; or the same experiment now has other numbers.
pub(crate) fn begun(
    prepared: &Prepared,
    launches: &[LaunchId],
    kinds: &Kinds,
) -> Result<Option<RunFolders>, Refusal> {
    let again: Vec<&LaunchId> = launches.iter().filter(|launch| launch.attempt > 0).collect();
    let Some(launch) = again.first() else { return Ok(None) };
    let asked = asked(prepared)?;
    let logs = prepared.plan.logging.dir.join(&prepared.plan.name);
    let notes: Vec<_> = notes(&logs).filter(|(_, note)| note.asked == asked).collect();
    match choose(&again, &notes) {
        Choice::Of(launch, folder) => {
            let StoredRun { run, .. } = described(folder)?;
            must_be_the_same(&run, prepared, kinds)?;
            let restart = restart(launch);
            to_stderr(&format!("{restart}: continuing run {} from its newest checkpoint", run.id));
            Ok(Some(run))
        }
        Choice::None => {
            let (restart, logs) = (restart(launch), logs.display());
            to_stderr(&format!("{restart}: no earlier run found in `{logs}`; starting a new one"));
            Ok(None)
        }
        Choice::Unclear(launch, folders) => Err(unclear(launch, &folders)),
    }
}

/// "torchrun has started the ranks again (restart 1)"
fn restart(launch: &LaunchId) -> String {
    format!("{} has started the ranks again (restart {})", launch.launcher, launch.attempt)
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

fn unclear(launch: &LaunchId, folders: &[&Path]) -> Refusal {
    let LaunchId { launcher, id, .. } = launch;
    let list: Vec<String> = folders.iter().map(|path| format!("\n  {}", path.display())).collect();
    let page = format!(
        "error: {}, but cannot tell which run of `{id}` to continue:{}\n  \
         do: continue one with `ddprun resume RUN` under {launcher}",
        restart(launch),
        list.concat(),
    );
    Refusal::new(exit::REFUSED, page)
}

/// Refuses to go on with numbers that the run did not begin with: on a machine with another number
/// of GPUs, for example.
fn must_be_the_same(run: &RunFolders, prepared: &Prepared, kinds: &Kinds) -> Result<(), Refusal> {
    let (path, before) = stored_experiment(run)?;
    let load = |text: &str| {
        let loaded = config::load_text(&path, text, &[], &vocabulary(kinds));
        loaded.map(|loaded| loaded.experiment).map_err(refused)
    };
    let (before, mut now) = (load(&before)?, load(&resolved(prepared)?)?);
    if by_name(prepared).is_some() {
        // The best checkpoint of the other run may be another one by now.
        now.model.pretrained.clone_from(&before.model.pretrained);
    }
    let changed = config::refuse_unsafe(&before, &now);
    changed.map(drop).map_err(|changes| {
        let list: Vec<String> = changes.iter().map(|change| format!("\n  {change}")).collect();
        let page = format!(
            "error: settings of run {} resolve differently on this machine:{}\n  \
             do: `ddprun resume {}`, with overrides if needed",
            run.id,
            list.concat(),
            run.logs.display()
        );
        Refusal::new(exit::REFUSED, page)
    })
}

/// A hash of the experiment as it was asked for.
fn asked(prepared: &Prepared) -> Result<String, Refusal> {
    let mut experiment = prepared.loaded.experiment.clone();
    if let Some(name) = by_name(prepared) {
        experiment.model.pretrained = Some(name);
    }
    let text =
        config::resolved(&experiment).map_err(|error| Refusal::of(exit::BUG, &error, None))?;
    Ok(blake3::hash(text.as_bytes()).to_hex().to_string())
}

/// The run whose weights are started from, as it was asked for.
fn by_name(prepared: &Prepared) -> Option<PathBuf> {
    let word = prepared.loaded.word("model.pretrained")?;
    word.starts_with(RUN).then(|| PathBuf::from(word))
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
    let note: Note = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
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
