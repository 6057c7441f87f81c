//! A run that is resumed: from its checkpoints, or from the beginning where it never had one.

use std::path::Path;

use crate::checkpoint;
use crate::cli::chosen::say_passed_over;
use crate::cli::prepare::{OwnedRun, Prepared, own_run, unwritable_run};
use crate::cli::run_files::{OtherData, refuse_checkpoints_of_others};
use crate::cli::{Refusal, to_stderr};
use crate::event::Event;
use crate::files;
use crate::launch::exit_code as exit;
use crate::plan::RunFolders;
use crate::record::{self, EPOCHS, EVENTS, HISTORY, METRICS, Stamped};

/// What to do where the checkpoints of a run are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingCheckpoints {
    /// Refuse, and say where they were looked for.
    Refused,
    /// Begin anew.
    FromScratch,
}

/// A run that is resumed.
#[derive(Clone, Debug)]
pub(crate) struct ResumedRun {
    pub(crate) folders: RunFolders,
    pub(crate) data: OtherData,
    pub(crate) gone: MissingCheckpoints,
    /// Whether it goes on from its newest checkpoint or not at all.
    pub(crate) strict: bool,
}

/// The checkpoints of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Past {
    /// There are some.
    Saved,
    /// It ended before the first one.
    Unsaved,
    /// It is over, after this many steps, and saves only when it is stopped.
    Complete(u64),
    /// There were some.
    Lost,
    /// There are none, and nothing says whether there were.
    Unknown,
}

impl ResumedRun {
    /// The run in these folders, with nothing accepted that it did not begin with.
    pub(crate) fn of(folders: RunFolders) -> Self {
        let (data, gone) = (OtherData::Refused, MissingCheckpoints::Refused);
        Self { folders, data, gone, strict: false }
    }

    /// Takes possession of the run's folders.
    pub(crate) fn own(&self, prepared: &Prepared) -> Result<OwnedRun, Refusal> {
        refuse_checkpoints_of_others(&self.folders)?;
        if self.strict {
            // What is damaged where none is intact is said by the ranks.
            let newest = checkpoint::newest(&self.folders.checkpoints).ok();
            newest.map_or(Ok(()), |newest| say_passed_over(&newest, true))?;
        }
        let begins_anew = self.begins_anew(prepared.plan.length.total_steps)?;
        let mut run = own_run(self.folders.clone(), prepared, self.data)?;
        run.is_resumed = true;
        if begins_anew {
            let kept = set_aside(&run.folders.logs).map_err(unwritable_run)?;
            let kept = kept.map(|folder| format!("; what it had recorded is kept in `{folder}`"));
            let kept = kept.unwrap_or_default();
            to_stderr(&format!("no checkpoint: restarting from step 0{kept}"));
        }
        Ok(run)
    }

    /// Whether the run has nothing to go on from; refused where it should have.
    fn begins_anew(&self, total_steps: u64) -> Result<bool, Refusal> {
        let folder = self.folders.checkpoints.display();
        let refuse = |code, what: &str, help: &str| {
            Err(Refusal::new(code, format!("error: {what}\n  do: {help}")))
        };
        let past = past(&self.folders)?;
        match (past, self.gone) {
            (Past::Saved, MissingCheckpoints::Refused) => Ok(false),
            (Past::Saved, MissingCheckpoints::FromScratch) => refuse(
                exit::REFUSED,
                &format!("refusing `--from-scratch`: this run has checkpoints in `{folder}`"),
                "omit `--from-scratch`; if none of them is intact, move that folder away first",
            ),
            (Past::Unsaved, _) | (_, MissingCheckpoints::FromScratch) => Ok(true),
            (Past::Complete(steps), MissingCheckpoints::Refused) => {
                let complete = format!("all {steps} steps are done, and none was saved");
                let help = "train it again from step 0 with `ddprun resume --from-scratch`";
                if total_steps <= steps {
                    let page = format!("already complete: {complete}; {help}");
                    return Err(Refusal::new(exit::OK, page));
                }
                let what = format!("cannot continue: {complete} (`checkpoint.every = \"never\"`)");
                refuse(exit::CHECKPOINT, &what, help)
            }
            (Past::Lost | Past::Unknown, MissingCheckpoints::Refused) => {
                let had = if past == Past::Lost { "had" } else { "may have" };
                refuse(
                    exit::CHECKPOINT,
                    &format!("there is no checkpoint in `{folder}`, and this run {had} saved some"),
                    "put them back there, or restart it from step 0 with `ddprun resume \
                     --from-scratch`",
                )
            }
        }
    }
}

/// What the folders of a run tell of its checkpoints.
fn past(run: &RunFolders) -> Result<Past, Refusal> {
    let folder = &run.checkpoints;
    let found = checkpoint::all(folder);
    let found = found.map_err(|error| Refusal::of(exit::CHECKPOINT, &error, None))?;
    if !found.is_empty() {
        return Ok(Past::Saved);
    }
    // Links are younger than a checkpoint.
    if folder.join("latest").is_symlink() {
        return Ok(Past::Lost);
    }
    let unreadable = |error: record::Error| Refusal::of(exit::STORAGE, &error, None);
    let (events, history) = (run.logs.join(EVENTS), run.logs.join(HISTORY));
    // The folder is older than the run; what was saved last may not be recorded.
    let unsaved = if folder.is_dir() { Past::Unsaved } else { Past::Unknown };
    if events.is_file() {
        let log = record::read_events(&events).map_err(unreadable)?;
        let complete = log.effective().into_iter().rev().find_map(|stamped| match &stamped.event {
            Event::Finished(finished) if finished.no_checkpoint => Some(finished.step),
            _ => None,
        });
        return Ok(match complete {
            Some(steps) => Past::Complete(steps),
            None if had_saved(&log.events) => Past::Lost,
            None => unsaved,
        });
    }
    let epochs = record::read_epochs(&run.logs.join(EPOCHS)).map_err(unreadable)?;
    let is_silent = epochs.is_none_or(|epochs| epochs.is_empty())
        && (!history.is_file() || record::read_history(&history).map_err(unreadable)?.is_empty());
    Ok(if is_silent { unsaved } else { Past::Unknown })
}

/// Whether a checkpoint had been written since the run last began at its first step.
fn had_saved(events: &[Stamped]) -> bool {
    events.iter().fold(false, |saved, stamped| match &stamped.event {
        Event::Started(started) => started.resumed_from > 0,
        Event::Saved(_) => true,
        _ => saved,
    })
}

/// Copies the records that a start at the first step writes anew into a folder of their own, and
/// names it; `None` where there are none.
fn set_aside(logs: &Path) -> Result<Option<String>, files::Error> {
    let read = |name: &'static str| Some((name, files::read(&logs.join(name)).ok()?));
    let records: Vec<(&str, Vec<u8>)> =
        [METRICS, EPOCHS, HISTORY].into_iter().filter_map(read).collect();
    let has_rows = records.iter().any(|(name, bytes)| match *name {
        METRICS => has_rows(bytes),
        EPOCHS => !bytes.is_empty(),
        _ => false,
    });
    let has_epochs = record::read_history(&logs.join(HISTORY)).is_ok_and(|it| !it.is_empty());
    if !has_rows && !has_epochs {
        return Ok(None);
    }
    let mut numbers = 1..;
    let folder = numbers.find_map(|number: u32| {
        Some(logs.join(format!("before-{number}"))).filter(|folder| !folder.exists())
    });
    let folder = folder.unwrap_or_else(|| logs.join("before"));
    files::create_folder(&folder)?;
    for (name, bytes) in records {
        files::write_atomic(&folder.join(name), &bytes)?;
    }
    Ok(Some(folder.display().to_string()))
}

/// Whether a table has more than its header.
fn has_rows(bytes: &[u8]) -> bool {
    bytes.split(|&byte| byte == b'\n').filter(|row| !row.is_empty()).nth(1).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Saved;
    use crate::record::example_events;
    use crate::units::Bytes;

    #[test]
    fn a_run_that_began_anew_has_saved_nothing_until_it_does() {
        let stamped = |event: Event| Stamped { time: jiff::Timestamp::UNIX_EPOCH, step: 0, event };
        let started = |from: u64| stamped(Event::Started(example_events::started(from)));
        let saved = stamped(Event::Saved(Saved {
            step: 4,
            path: "step-00000004".into(),
            best: true,
            size: Bytes(1),
            seconds: 0.1,
            stall_seconds: 0.0,
            replaced: 0,
            surplus: None,
        }));
        assert!(!had_saved(&[]));
        assert!(!had_saved(&[started(0)]));
        assert!(had_saved(&[started(0), saved.clone()]));
        assert!(had_saved(&[started(4)]));
        assert!(!had_saved(&[started(0), saved.clone(), started(0)]));
        assert!(had_saved(&[started(0), saved.clone(), started(0), saved]));
    }
}
