//! The outcome of a run, from its events and the files beside them.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::de::DeserializeOwned;

use crate::event::{Event, Finished, Started};
use crate::files;
use crate::launch::{Blame, ErrorReport, Failure, Phase};
use crate::plan::RunFolders;
use crate::record::{DESCRIPTION, Stamped, newest_of, summary};

/// Evidence of a run's outcome beside its events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutcomeFiles {
    /// Name of the run in commands: `<time>-<id>`, or its folder.
    pub run: String,
    /// The process that has the run now.
    pub holder: Option<String>,
    /// Why its newest start failed, and what to do, in a few lines.
    pub failure: Option<String>,
    /// Steps that were finished when it failed.
    pub failed_after: Option<u64>,
}

impl OutcomeFiles {
    /// Reads the files in `folder`; `events` are those of the run.
    pub(crate) fn read(folder: &Path, events: &[Stamped]) -> Self {
        let run = RunFolders::word(folder);
        let holder = files::lock_holder(folder);
        let failed = launcher_failure(folder).or_else(|| rank_failure(folder, events));
        let (failure, failed_after) = failed.unzip();
        Self { run, holder, failure, failed_after }
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ending<'a> {
    /// This process has it.
    Running(&'a str),
    /// The newest start failed: why, and what to do.
    Failed(&'a str),
    /// It came to its end, or was stopped.
    Finished(&'a Finished),
    /// It was started again after all of its steps, and recorded no end.
    NothingLeft(u64),
    /// No process has it, and there is no reason on disk; the newest start had begun.
    Killed,
    /// [`Ending::Killed`], without any event.
    Silent,
}

impl<'a> Ending<'a> {
    /// The outcome of the run with these effective events.
    pub(crate) fn of(events: &[&'a Stamped], traces: &'a OutcomeFiles) -> Self {
        if let Some(holder) = &traces.holder {
            return Self::Running(holder);
        }
        if let Some(failure) = &traces.failure {
            return Self::Failed(failure);
        }
        match (last_end(events), last_start(events)) {
            (Some(finished), _) => Self::Finished(finished),
            (None, Some(start)) if start.resumed_from >= start.total_steps => {
                Self::NothingLeft(start.total_steps)
            }
            (None, Some(_)) => Self::Killed,
            (None, None) => Self::Silent,
        }
    }
}

/// Describes the outcome of the run with these effective events.
pub(crate) fn ending(events: &[&Stamped], traces: &OutcomeFiles) -> String {
    let run = &traces.run;
    let last = events.iter().map(|stamped| stamped.step).max().unwrap_or(0);
    match Ending::of(events, traces) {
        Ending::Running(holder) => format!("still running at step {last} ({holder})"),
        Ending::Failed(failure) => failure.to_owned(),
        Ending::Finished(finished) => summary(finished, run, &Vec::new()),
        Ending::NothingLeft(steps) => {
            format!("completed: all {steps} steps were done before it was resumed")
        }
        Ending::Killed => {
            format!("killed after step {last}: `ddprun resume {run}` continues it")
        }
        Ending::Silent => "killed before its first step, or events were not recorded".to_owned(),
    }
}

/// The newest start among these effective events.
pub fn last_start<'a>(events: &[&'a Stamped]) -> Option<&'a Started> {
    events.iter().rev().find_map(|stamped| match &stamped.event {
        Event::Started(started) => Some(started),
        _ => None,
    })
}

/// The end among these effective events. A run that is over may still warn of what it missed, or be
/// resumed in order to find that nothing is left to do.
pub fn last_end<'a>(events: &[&'a Stamped]) -> Option<&'a Finished> {
    events.iter().rev().find_map(|stamped| match &stamped.event {
        Event::Finished(finished) => Some(finished),
        _ => None,
    })
}

/// The launcher's report about the newest start, and the number of steps finished by then.
fn launcher_failure(folder: &Path) -> Option<(String, u64)> {
    let failure: Failure = newer_than_the_start(folder, &folder.join("failure.json"))?;
    let mut lines = vec![format!(
        "failed at step {} ({}, exit {}): {}",
        failure.step, failure.phase, failure.code, failure.message
    )];
    if !failure.causes.is_empty() {
        lines.push(format!("  why: {}", failure.causes.join(": ")));
    }
    lines.push(format!("  do: {}", failure.remedy()));
    Some((lines.join("\n"), finished_steps(failure.step, failure.phase)))
}

/// Like [`launcher_failure`], from the report of a rank that no launcher of ours watched. It does
/// not count once the run was started again.
fn rank_failure(folder: &Path, events: &[Stamped]) -> Option<(String, u64)> {
    let is_turn = |event: &Event| matches!(event, Event::Started(_) | Event::Finished(_));
    let turn = events.iter().rev().find(|stamped| is_turn(&stamped.event));
    let reports = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let reports = reports.filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("rank-") && name.ends_with(".error.json")
    });
    let first = reports
        .filter_map(|path: PathBuf| newer_than_the_start::<ErrorReport>(folder, &path))
        .filter(|report| turn.is_none_or(|turn| report.time >= turn.time))
        .min_by_key(|report| (report.blame == Blame::Peer, report.monotonic))?;
    let ErrorReport { rank, step, phase, exit_code, message, help, .. } = first;
    let help = help.map(|help| format!("\n  do: {help}")).unwrap_or_default();
    let words =
        format!("failed at step {step} ({phase}, exit {exit_code}): rank {rank}: {message}{help}");
    Some((words, finished_steps(step, phase)))
}

/// Number of finished steps of a rank that has begun `step` and is in this phase.
fn finished_steps(step: u64, phase: Phase) -> u64 {
    let is_finished = matches!(phase, Phase::Evaluating | Phase::Saving | Phase::Finishing);
    step.saturating_sub(u64::from(!is_finished))
}

/// Reads the file at `path` if it was written since the run in `folder` was last started.
fn newer_than_the_start<T: DeserializeOwned>(folder: &Path, path: &Path) -> Option<T> {
    let modified = |path: &Path| -> Option<SystemTime> { path.metadata().ok()?.modified().ok() };
    if modified(path)? < modified(&newest_of(folder, DESCRIPTION))? {
        return None;
    }
    serde_json::from_slice(&files::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Reason;
    use crate::record::example_events;

    fn stamped(events: Vec<Event>) -> Vec<Stamped> {
        let time = "2026-11-20T13:25:56Z".parse().unwrap();
        let stamp = |event: Event| Stamped { time, step: event.step().unwrap_or(0), event };
        events.into_iter().map(stamp).collect()
    }

    fn ended(events: Vec<Event>, traces: &OutcomeFiles) -> String {
        let events = stamped(events);
        let effective = crate::record::Log { events, n_unreadable: 0 };
        ending(&effective.effective(), traces).lines().next().unwrap().to_owned()
    }

    fn traces() -> OutcomeFiles {
        OutcomeFiles { run: "r-1".into(), ..OutcomeFiles::default() }
    }

    #[test]
    fn each_end_has_its_word() {
        let start = Event::Started(example_events::started(0));
        let step = Event::StepDone(example_events::step_done(30));
        let running = vec![start.clone(), step];
        let with = |reason: Reason| {
            let finished = Event::Finished(Finished { reason, ..example_events::finished() });
            ended(running.iter().cloned().chain([finished]).collect(), &traces())
        };
        let words = [
            (Reason::Completed, "completed after step 50 in 2m 31s"),
            (Reason::EarlyStopped, "stopped early (no improvement) after step 50"),
            (Reason::OutOfTime, "time limit reached after step 50"),
            (Reason::Stopped, "stopped (state saved) after step 50"),
            (Reason::Abandoned, "stopped (state not saved) after step 50"),
        ];
        for (reason, words) in words {
            assert!(with(reason).starts_with(words), "{}", with(reason));
        }
        assert_eq!(
            ended(running.clone(), &traces()),
            "killed after step 30: `ddprun resume r-1` continues it"
        );
        let held = OutcomeFiles { holder: Some("pid 7 on a".into()), ..traces() };
        assert_eq!(ended(running.clone(), &held), "still running at step 30 (pid 7 on a)");
        let failed = OutcomeFiles { failure: Some("failed at step 31".into()), ..traces() };
        assert_eq!(ended(running, &failed), "failed at step 31");
        assert_eq!(ended(vec![], &failed), "failed at step 31");
    }

    #[test]
    fn a_finished_run_that_is_resumed_is_as_finished_as_before() {
        let start = Event::Started(example_events::started(0));
        let again = Event::Started(example_events::started(50));
        let notice = Event::Warned { message: "already complete".into() };
        let finished = Event::Finished(example_events::finished());
        let whole = vec![start.clone(), finished.clone(), again.clone(), notice.clone()];
        assert!(ended(whole, &traces()).starts_with("completed after step 50 in 2m 31s"));
        let unfinished = vec![start.clone(), again, notice];
        assert_eq!(
            ended(unfinished, &traces()),
            "completed: all 50 steps were done before it was resumed"
        );
        let longer = Event::Started(Started { total_steps: 60, ..example_events::started(50) });
        assert!(
            ended(vec![start, finished, longer], &traces()).starts_with("killed after step 50")
        );
    }

    #[test]
    fn a_failure_counts_until_the_run_is_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let write =
            |name: &str, text: &str| files::write_atomic(&at(name), text.as_bytes()).unwrap();
        write(DESCRIPTION, "{}");
        assert_eq!(OutcomeFiles::read(folder.path(), &[]).failure, None);
        let report = r#"{"format":1,"rank":RANK,"pid":1,"host":"a","monotonic":{"secs":1,"nanos":0},
            "time":"2026-11-20T13:25:57Z","phase":"forward","step":12,"exit_code":4,"blame":"BLAME",
            "message":"MESSAGE","causes":[],"place":null,"help":"use a smaller `optimizer.lr`"}"#;
        let report = |rank: &str, blame: &str, message: &str| {
            report.replace("RANK", rank).replace("BLAME", blame).replace("MESSAGE", message)
        };
        write("rank-0.error.json", &report("0", "peer", "rank 1 is gone"));
        write("rank-1.error.json", &report("1", "own", "the loss is not finite"));
        let of = |events: Vec<Event>| OutcomeFiles::read(folder.path(), &stamped(events)).failure;
        let start = Event::Started(example_events::started(0));
        let said = "failed at step 12 (forward, exit 4): rank 1: the loss is not finite\n  \
                    do: use a smaller `optimizer.lr`";
        assert_eq!(of(vec![start]).as_deref(), Some(said));
        assert_eq!(OutcomeFiles::read(folder.path(), &[]).failed_after, Some(11));
        let later = Stamped {
            time: "2026-11-20T13:25:58Z".parse().unwrap(),
            step: 10,
            event: Event::Started(example_events::started(10)),
        };
        assert_eq!(
            OutcomeFiles::read(folder.path(), &[later]).failure,
            None,
            "it was started again"
        );
        let past = SystemTime::now() - std::time::Duration::from_mins(1);
        for name in ["rank-0.error.json", "rank-1.error.json"] {
            std::fs::File::open(at(name)).unwrap().set_modified(past).unwrap();
        }
        assert_eq!(of(vec![]), None, "the run was resumed since");
    }
}
