//! `Plan` -> the run's end: starts the group, watches it, and starts it again after a failure.

use std::sync::Arc;
use std::time::Duration;

use crate::files;
use crate::launch::parent::group::Stop;
use crate::launch::parent::recovery::{Course, Failed};
use crate::launch::parent::spawn::{Program, start_all};
use crate::launch::parent::verdict::{Ended, Verdict, judge};
use crate::launch::parent::watch::{Ears, watch};
use crate::launch::{Failure, Nodes, Phase};
use crate::plan::{Plan, RunFolders};
use crate::transport::Waker;
use crate::units::{BatchSize, Rank, WorldSize};

/// How the run is started.
#[derive(Clone, Debug)]
pub struct Start {
    /// Whether ranks continue from the newest checkpoint of the run.
    pub resume: bool,
    /// What a rank executes.
    pub program: Program,
    /// Where rank 0 speaks.
    pub console: Console,
    /// Plans of the smaller groups that the run may go on with, largest first.
    pub smaller: Vec<Plan>,
    /// Rung by another thread to stop this run; it then ends as after a SIGTERM.
    pub waker: Option<Arc<Waker>>,
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
    /// A rank ran out of memory: the run goes on from its newest checkpoint in smaller passes, and more of them.
    Shrunk {
        /// Samples of a pass from now on.
        size: BatchSize,
        /// Who ran out of memory.
        cause: Box<Failure>,
    },
    /// The run goes on from its newest checkpoint with another number of ranks.
    Resized {
        /// Before.
        from: WorldSize,
        /// From now on.
        to: WorldSize,
        /// Why it has fewer; absent if it has more.
        cause: Option<Box<Failure>>,
    },
}

/// Runs the plan to its end: one process per rank, watched, and restarted `plan.max_restarts` times; then with
/// fewer ranks, if `start` has plans for them, and with more again after a checkpoint (`elastic.rs`). No process
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
    run_here(plan, run, start, None, on_note)
}

/// As [`run()`], for this machine's ranks of a run over several, whose parents have met. No group is started again.
///
/// # Errors
///
/// The first failure on any machine; on the others its code is 5. Written to `failure.json` on node 0, and
/// `failure.node-N.json` on the others, whose logs may be in the same folder.
pub fn run_node(
    plan: &Plan,
    run: &RunFolders,
    start: &Start,
    nodes: &mut Nodes,
    on_note: &mut dyn FnMut(Note),
) -> Result<Ended, Box<Failure>> {
    run_here(plan, run, start, Some(nodes), on_note)
}

fn run_here(
    plan: &Plan,
    run: &RunFolders,
    start: &Start,
    nodes: Option<&mut Nodes>,
    on_note: &mut dyn FnMut(Note),
) -> Result<Ended, Box<Failure>> {
    let name = match nodes.as_ref().map_or(0, |nodes| nodes.node()) {
        0 => "failure.json".to_owned(),
        node => format!("failure.node-{node}.json"),
    };
    let ears =
        Ears::open(start.waker.clone()).map_err(|error| Failure::of_start(run, Rank(0), &error, 8));
    let ended = ears.and_then(|mut ears| attempts(plan, run, start, (&mut ears, nodes), on_note));
    ended.inspect_err(|failure| {
        let text = serde_json::to_vec_pretty(failure).unwrap_or_default();
        // The failure itself goes to the caller; a disk that takes no file must not hide it.
        let _ = files::write_atomic(&run.logs.join(name), &text);
    })
}

fn attempts(
    plan: &Plan,
    run: &RunFolders,
    start: &Start,
    (ears, mut nodes): (&mut Ears, Option<&mut Nodes>),
    on_note: &mut dyn FnMut(Note),
) -> Result<Ended, Box<Failure>> {
    let mut course = Course::new(plan, &start.smaller);
    loop {
        let (plan, causes) = (course.plan(), course.causes());
        let group = Attempt { plan, run, start, causes, grows_after: course.grows_after() };
        match group.make(ears, nodes.as_deref_mut(), on_note) {
            Ok(Some(ended)) => return Ok(ended),
            Ok(None) => on_note(course.grow()),
            Err(failed) => {
                let failure = failed.failure.clone();
                let (note, wait) = course.after(failed)?;
                on_note(note);
                if ears.is_called_within(wait) {
                    return Err(course.call_off(failure));
                }
            }
        }
    }
}

/// One start of the group.
struct Attempt<'a> {
    plan: &'a Plan,
    run: &'a RunFolders,
    start: &'a Start,
    /// Why those before ended.
    causes: &'a [String],
    /// Checkpoints after which it makes room for a larger one.
    grows_after: Option<u32>,
}

impl Attempt<'_> {
    /// Starts the group and follows it to its end; `None`: it was stopped to become larger.
    fn make(
        &self,
        ears: &mut Ears,
        mut nodes: Option<&mut Nodes>,
        on_note: &mut dyn FnMut(Note),
    ) -> Result<Option<Ended>, Failed> {
        let Self { plan, run, .. } = *self;
        let processes = start_all(plan, run, self.start, self.causes, nodes.as_deref_mut());
        let processes = processes.map_err(|failure| {
            let failure = match nodes.as_deref_mut() {
                Some(nodes) => end_everywhere(nodes, failure),
                None => failure,
            };
            Failed { failure, step: 0, saved: 0, never_started: true, was_asked: false }
        })?;
        let limits = (plan.stall_timeout, self.grows_after);
        let group = watch(processes, limits, ears, nodes.as_deref_mut(), on_note);
        let verdict = judge(&group);
        let is_consequence = verdict.is_consequence(&group);
        let ended = match verdict {
            Verdict::Ended(ended) => Ok(ended),
            Verdict::Resized => return Ok(None),
            Verdict::Elsewhere => Err(Failure::of_elsewhere(run, group.first())),
            Verdict::Fault(rank, fault) => Err(Failure::of_fault(run, &group, rank, fault)),
            Verdict::Frozen(rank) => Err(Failure::of_frozen(run, &group, rank)),
            Verdict::Stalled(stall) => Err(Failure::of_stall(run, &group, stall)),
            Verdict::Missed(rank) => Err(Failure::of_missed(run, &group, rank)),
        };
        let ended = match nodes {
            Some(nodes) => nodes.conclude(
                ended.map_err(|failure| (at_node(nodes.node(), failure), is_consequence)),
            ),
            None => ended,
        };
        ended.map(Some).map_err(|failure| Failed {
            failure,
            step: group.members.iter().map(|member| member.step).max().unwrap_or(0),
            saved: group.saved(),
            never_started: false,
            was_asked: group.asked() > Some(Stop::Resize),
        })
    }
}

/// Tells the other machines why this one has not even begun.
fn end_everywhere(nodes: &mut Nodes, failure: Box<Failure>) -> Box<Failure> {
    let failure = at_node(nodes.node(), failure);
    match nodes.conclude(Err((failure.clone(), false))) {
        Ok(_) => failure,
        Err(failure) => failure,
    }
}

fn at_node(node: u32, failure: Box<Failure>) -> Box<Failure> {
    Box::new(Failure { node: Some(node), ..*failure })
}
