//! `Plan` -> the run's end: starts the group, watches it, and starts it again after a failure.

use std::sync::Arc;
use std::time::Duration;

use crate::files;
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
    let mut history = Vec::new();
    for restarts in 0.. {
        let resume = start.resume || restarts > 0;
        let processes = start_all(plan, run, start, resume, restarts)?;
        let group = watch(processes, ears, on_note);
        let mut failure = match judge(&group) {
            Verdict::Ended(ended) => return Ok(ended),
            Verdict::Fault(rank, fault) => Failure::of_fault(run, &group, rank, fault),
            Verdict::Frozen(rank) => Failure::of_frozen(run, &group, rank),
        };
        let wait = backoff(restarts);
        let is_last = restarts >= plan.max_restarts || group.asked().is_some();
        if !is_last && may_pass(failure.code) {
            history.push(failure.to_string());
            let (attempt, of) = (restarts + 1, plan.max_restarts);
            on_note(Note::Restarting { attempt, of, wait, cause: failure.clone() });
            if !ears.is_called_within(wait) {
                continue;
            }
            history.pop();
        }
        failure.history = history;
        return Err(failure);
    }
    unreachable!("the loop has no end but `return`")
}

/// Seconds before the n-th restart: 1, 2, 4 ... 30.
fn backoff(restarts: u32) -> Duration {
    Duration::from_secs(1 << restarts.min(5)).min(Duration::from_secs(30))
}

/// Whether a failure may be gone at the next attempt. The same file, data, numbers or checkpoint would
/// fail in the same way, bit for bit.
fn may_pass(code: u8) -> bool {
    !matches!(code, 2 | 3 | 4 | 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_before_a_restart_doubles_up_to_half_a_minute() {
        let seconds: Vec<u64> = (0..7).map(|restarts| backoff(restarts).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn only_failures_that_may_pass_are_worth_a_restart() {
        let worth: Vec<u8> = (0..=255)
            .filter(|&code| (2..=8).contains(&code) || code == 70)
            .filter(|&code| may_pass(code))
            .collect();
        assert_eq!(worth, [5, 6, 8, 70]);
    }
}
