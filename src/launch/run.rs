//! `Plan` -> the run's end: starts the group, watches it, and starts it again after a failure.

use std::sync::Arc;
use std::time::Duration;

use crate::files;
use crate::launch::elastic::Sizes;
use crate::launch::restart::{Budget, may_pass};
use crate::launch::start::{Program, start_all};
use crate::launch::supervise::Stop;
use crate::launch::verdict::{Ended, Verdict, judge};
use crate::launch::watch::{Ears, watch};
use crate::launch::{Bell, Failure, Phase};
use crate::plan::{OnOom, Plan, RunFolders};
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
    let mut plans: Vec<Plan> = std::iter::once(plan).chain(&start.smaller).cloned().collect();
    let (mut budget, mut sizes) = (Budget::new(plan.max_restarts), Sizes::new(plans.len()));
    loop {
        let (plan, causes) = (&plans[sizes.at()], budget.causes().to_vec());
        let from = plan.world_size();
        let group = Attempt { plan, run, start, causes: &causes, grows_after: sizes.grows_after() };
        let failed = match group.make(ears, on_note) {
            Ok(Some(ended)) => return Ok(ended),
            Ok(None) => {
                sizes.grow();
                let to = plans[sizes.at()].world_size();
                budget.renew(format!("{}: a checkpoint was on disk", instead(to, from)));
                on_note(Note::Resized { from, to, cause: None });
                continue;
            }
            Err(failed) => failed,
        };
        match follow(&failed, &plans, &mut budget, &mut sizes) {
            Some(Next::Again(wait)) => {
                let (attempt, of) = (budget.spent(), budget.allowed());
                let cause = failed.failure.clone();
                on_note(Note::Restarting { attempt, of, wait, cause });
                if !ears.is_called_within(wait) {
                    continue;
                }
                budget.take_back();
            }
            Some(Next::Smaller) => {
                let to = plans[sizes.at()].world_size();
                budget.renew(format!("{}: {}", instead(to, from), failed.failure));
                on_note(Note::Resized { from, to, cause: Some(failed.failure) });
                continue;
            }
            Some(Next::SmallerPasses(smaller)) => {
                plans = smaller;
                let size = plans[sizes.at()].batch.size;
                budget.renew(format!("passes of {size}: {}", failed.failure));
                on_note(Note::Shrunk { size, cause: failed.failure });
                continue;
            }
            None => {}
        }
        return Err(Box::new(Failure { history: budget.causes().to_vec(), ..*failed.failure }));
    }
}

/// "2 ranks instead of 4"
pub(crate) fn instead(to: WorldSize, from: WorldSize) -> String {
    format!("{to} {} instead of {from}", if to == WorldSize::ONE { "rank" } else { "ranks" })
}

/// What follows a failure that is not the end.
enum Next {
    /// The same group, after a while.
    Again(Duration),
    /// A smaller group.
    Smaller,
    /// The same group with less to remember at once.
    SmallerPasses(Vec<Plan>),
}

/// A group has its restarts; then, or if it was only tried, or cannot even be started, a smaller one goes on. One that
/// ran out of memory goes on in smaller passes, if that was asked for.
fn follow(failed: &Failed, plans: &[Plan], budget: &mut Budget, sizes: &mut Sizes) -> Option<Next> {
    if failed.was_asked || !may_pass(failed.failure.code) {
        return None;
    }
    if failed.saved > 0 {
        sizes.has_saved();
    }
    if failed.failure.out_of_memory && plans[sizes.at()].on_oom == OnOom::ShrinkBatch {
        // The same passes would fail again; with none smaller, perhaps something else takes less next time.
        if let Some(smaller) = plans.iter().map(Plan::in_smaller_passes).collect() {
            return Some(Next::SmallerPasses(smaller));
        }
    }
    // What could not be started the first time will not start the next time either.
    let is_hopeless = failed.never_started && budget.causes().is_empty();
    if !is_hopeless
        && !sizes.is_on_trial()
        && let Some(wait) = budget.spend(&failed.failure, failed.step)
    {
        return Some(Next::Again(wait));
    }
    sizes.shrink().then_some(Next::Smaller)
}

/// A group that did not end as it should.
struct Failed {
    failure: Box<Failure>,
    /// Furthest step that a rank had begun.
    step: u64,
    /// Checkpoints that it had saved.
    saved: u32,
    /// Whether not all of its ranks could be started.
    never_started: bool,
    /// Whether it had been asked to leave.
    was_asked: bool,
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
        on_note: &mut dyn FnMut(Note),
    ) -> Result<Option<Ended>, Failed> {
        let Self { plan, run, .. } = *self;
        let processes = start_all(plan, run, self.start, self.causes).map_err(|failure| {
            Failed { failure, step: 0, saved: 0, never_started: true, was_asked: false }
        })?;
        let limits = (plan.stall_timeout, self.grows_after);
        let group = watch(processes, limits, ears, on_note);
        let failure = match judge(&group) {
            Verdict::Ended(ended) => return Ok(Some(ended)),
            Verdict::Resized => return Ok(None),
            Verdict::Fault(rank, fault) => Failure::of_fault(run, &group, rank, fault),
            Verdict::Frozen(rank) => Failure::of_frozen(run, &group, rank),
            Verdict::Stalled(stall) => Failure::of_stall(run, &group, stall),
            Verdict::Missed(rank) => Failure::of_missed(run, &group, rank),
        };
        Err(Failed {
            failure,
            step: group.members.iter().map(|member| member.step).max().unwrap_or(0),
            saved: group.saved(),
            never_started: false,
            was_asked: group.asked() > Some(Stop::Resize),
        })
    }
}
