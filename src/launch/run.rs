//! `Plan` -> the run's end: starts the group, watches it, and starts it again after a failure.

use std::sync::Arc;
use std::time::Duration;

use crate::files;
use crate::launch::restart::Budget;
use crate::launch::start::{Program, start_all};
use crate::launch::supervise::Stop;
use crate::launch::verdict::{Ended, Verdict, judge};
use crate::launch::watch::{Ears, watch};
use crate::launch::{Bell, Failure, Phase};
use crate::plan::{Plan, RunFolders};
use crate::units::Rank;

/// How the run is started.
#[derive(Clone, Debug)]
pub struct Start {
    /// Whether ranks continue from the newest checkpoint of the run.
    pub resume: bool,
    /// What a rank executes.
    pub program: Program,
    /// Where rank 0 speaks.
    pub console: Console,
    /// Rung by another thread to stop this run; it then ends as after a SIGTERM.
    pub bell: Option<Arc<Bell>>,
}

/// Where rank 0 speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Console {
    /// On the terminal of its parent.
    Terminal,
    /// Into `console.log` of the run.
    File,
}

/// What the parent says while it watches.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// A rank's process exists.
    Started {
        /// The rank.
        rank: Rank,
        /// Its process.
        pid: u32,
    },
    /// A rank was seen here; each is looked at a few times a second.
    Progress {
        /// The rank.
        rank: Rank,
        /// Last step begun.
        step: u64,
        /// What it is doing.
        phase: Phase,
    },
    /// A rank stands still (SIGSTOP); the others will wait for it until their deadline.
    Stopped {
        /// The rank.
        rank: Rank,
        /// Its process.
        pid: u32,
    },
    /// It runs again.
    Continued {
        /// The rank.
        rank: Rank,
        /// Its process.
        pid: u32,
    },
    /// All ranks were asked to stop.
    Stopping {
        /// How.
        stop: Stop,
    },
    /// The group failed and will be started again from the newest checkpoint.
    Restarting {
        /// From 1.
        attempt: u32,
        /// Attempts that the plan allows.
        of: u32,
        /// Time until then.
        wait: Duration,
        /// Why it failed.
        cause: Box<Failure>,
    },
}

/// Runs the plan to its end: one process per rank, watched, and restarted `plan.max_restarts` times. No process
/// is left when it returns. The run's folders exist, and the calling thread must be one that
/// lives as long as the run (the main thread), because ranks die with the thread that started them.
///
/// # Errors
///
/// The first failure of the last attempt, also written to `<run.logs>/failure.json`.
pub fn run(
    plan: &Plan,
    run: &RunFolders,
    start: &Start,
    on_note: &mut dyn FnMut(Note),
) -> Result<Ended, Box<Failure>> {
    let ears =
        Ears::open(start.bell.clone()).map_err(|error| Failure::of_start(run, Rank(0), &error, 8));
    let ended = ears.and_then(|mut ears| attempts(plan, run, start, &mut ears, on_note));
    ended.inspect_err(|failure| {
        let text = serde_json::to_vec_pretty(failure).unwrap_or_default();
        // The failure itself goes to the caller; a disk that takes no file must not hide it.
        let _ = files::write_atomic(&run.logs.join("failure.json"), &text);
    })
}

fn attempts(
    plan: &Plan,
    run: &RunFolders,
    start: &Start,
    ears: &mut Ears,
    on_note: &mut dyn FnMut(Note),
) -> Result<Ended, Box<Failure>> {
    let mut budget = Budget::new(plan.max_restarts);
    loop {
        let Failed { mut failure, step, is_final } =
            match attempt(plan, run, start, budget.causes(), ears, on_note) {
                Ok(ended) => return Ok(ended),
                Err(failed) => failed,
            };
        let wait = if is_final { None } else { budget.spend(&failure, step) };
        if let Some(wait) = wait {
            let (attempt, of) = (budget.spent(), budget.allowed());
            on_note(Note::Restarting { attempt, of, wait, cause: failure.clone() });
            if !ears.is_called_within(wait) {
                continue;
            }
            budget.take_back();
        }
        failure.history = budget.causes().to_vec();
        return Err(failure);
    }
}

/// A group that did not end as it should.
struct Failed {
    failure: Box<Failure>,
    /// Furthest step that a rank had begun.
    step: u64,
    /// Whether another attempt is out of the question.
    is_final: bool,
}

/// Starts the group and follows it to its end. `causes` are those of the restarts before.
fn attempt(
    plan: &Plan,
    run: &RunFolders,
    start: &Start,
    causes: &[String],
    ears: &mut Ears,
    on_note: &mut dyn FnMut(Note),
) -> Result<Ended, Failed> {
    // What could not be started the first time will not start the next time either.
    let is_final = causes.is_empty();
    let processes = start_all(plan, run, start, causes).map_err(|failure| Failed {
        failure,
        step: 0,
        is_final,
    })?;
    let group = watch(processes, plan.stall_timeout, ears, on_note);
    let failure = match judge(&group) {
        Verdict::Ended(ended) => return Ok(ended),
        Verdict::Fault(rank, fault) => Failure::of_fault(run, &group, rank, fault),
        Verdict::Frozen(rank) => Failure::of_frozen(run, &group, rank),
        Verdict::Stalled(stall) => Failure::of_stall(run, &group, stall),
        Verdict::Missed(rank) => Failure::of_missed(run, &group, rank),
    };
    let step = group.members.iter().map(|member| member.step).max().unwrap_or(0);
    Err(Failed { failure, step, is_final: group.asked().is_some() })
}
