//! `Plan` -> the run's end: starts the group, watches it, and starts it again after a failure.
//!
//! Over several machines node 0 decides what follows a failure, and all parents meet again:
//!
//! ```text
//! node 0   ends its ranks ─▶ decides ─Decision─▶ listens ─▶ all are there ─▶ starts its ranks
//! node k   ends its ranks ─▶ hears it, or that node 0 is gone ─▶ connects ─▶ starts its ranks
//! ```

use std::time::Duration;

use crate::files;
use crate::launch::error_report::clock;
use crate::launch::failure::Ended;
use crate::launch::machines::joining::{LOOK_INTERVAL, STOPPED};
use crate::launch::machines::node_rendezvous::{MeetAgainError, join_again};
use crate::launch::machines::nodes::{Decision, NodeFailure};
use crate::launch::parent::options::{LauncherEvent, Start};
use crate::launch::parent::recovery::{FailedAttempt, Recovery};
use crate::launch::parent::spawn::spawn_all;
use crate::launch::parent::verdict::judge;
use crate::launch::parent::watch::{StopSources, Watch};
use crate::launch::{Failure, Nodes, Stop};
use crate::plan::{Plan, RunFolders};
use crate::units::Rank;
use crate::user_error::ExitCode;

/// Time that a look at the stop requests takes.
const LOOK: Duration = Duration::from_millis(1);

/// Runs the plan to its end: one process per rank, watched, and restarted `plan.max_restarts`
/// times; then with fewer ranks, if `start` has plans for them, and with more again after a
/// checkpoint. No process is left when it returns. The run's folders exist, and the calling thread
/// must be one that lives as long as the run (the main thread), because ranks die with the thread
/// that started them.
///
/// # Errors
///
/// The first failure of the last attempt, also written to `<run.logs>/failure.json`.
pub fn run(
    plan: &Plan,
    run: &RunFolders,
    start: &Start,
    on_event: &mut dyn FnMut(LauncherEvent),
) -> Result<Ended, Box<Failure>> {
    run_to_end(plan, run, start, None, on_event)
}

/// [`run()`] for this machine's ranks of a run over several, whose parents have found each other.
/// To start the group again, all parents meet again; node 0 decides whether they do.
///
/// # Errors
///
/// The first failure on any machine; on the others its code is 5. Written to `failure.json` on node
/// 0, and `failure.node-N.json` on the others, whose logs may be in the same folder.
pub fn run_node(
    plan: &Plan,
    run: &RunFolders,
    start: &Start,
    nodes: &mut Nodes,
    on_event: &mut dyn FnMut(LauncherEvent),
) -> Result<Ended, Box<Failure>> {
    run_to_end(plan, run, start, Some(nodes), on_event)
}

fn run_to_end(
    plan: &Plan,
    run: &RunFolders,
    start: &Start,
    mut nodes: Option<&mut Nodes>,
    on_event: &mut dyn FnMut(LauncherEvent),
) -> Result<Ended, Box<Failure>> {
    let name = match nodes.as_ref().map_or(0, |nodes| nodes.node()) {
        0 => "failure.json".to_owned(),
        node => format!("failure.node-{node}.json"),
    };
    let stops = StopSources::open(start.waker.clone())
        .map_err(|error| Failure::of_start(run, Rank(0), &error, ExitCode::Resource));
    let ended = stops.and_then(|stops| {
        Runner { run, start, stops, nodes: nodes.as_deref_mut(), on_event }.run(plan)
    });
    let ended = ended.map_err(|failure| match &nodes {
        Some(nodes) => Box::new(nodes.reported(*failure)),
        None => failure,
    });
    ended.inspect_err(|failure| {
        let text = serde_json::to_vec_pretty(failure).unwrap_or_default();
        // The failure itself goes to the caller; a disk that is full or hangs must not hide it.
        let path = run.logs.join(name);
        let _ = files::within(files::DISK_TIMEOUT, move || files::write_atomic(&path, &text));
    })
}

/// State shared by all attempts of a run.
struct Runner<'a> {
    run: &'a RunFolders,
    start: &'a Start,
    stops: StopSources,
    nodes: Option<&'a mut Nodes>,
    on_event: &'a mut dyn FnMut(LauncherEvent),
}

impl Runner<'_> {
    fn run(&mut self, plan: &Plan) -> Result<Ended, Box<Failure>> {
        let mut recovery = match &self.nodes {
            Some(nodes) => Recovery::resumed(plan, nodes.past()),
            None => Recovery::new(plan, &self.start.smaller),
        };
        loop {
            match self.attempt(&recovery) {
                Ok(Some(ended)) => return Ok(ended),
                Ok(None) => self.grow(&mut recovery)?,
                Err(failed) => self.recover(&mut recovery, failed)?,
            }
        }
    }

    /// The group has made room for a larger one.
    fn grow(&mut self, recovery: &mut Recovery) -> Result<(), Box<Failure>> {
        let Some(nodes) = &self.nodes else {
            (self.on_event)(recovery.grow());
            return Ok(());
        };
        recovery.make_room();
        let first = nodes.ranks().next().unwrap_or(Rank(0));
        let met = self.meet(recovery, None);
        met.map_err(|why| because(Failure::of_failed_rendezvous(self.run, first), &why))
    }

    /// The group has failed: prepares the next one.
    fn recover(
        &mut self,
        recovery: &mut Recovery,
        failed: FailedAttempt,
    ) -> Result<(), Box<Failure>> {
        let failure = failed.failure.clone();
        let (note, wait) = after_failure(self.nodes.as_deref_mut(), recovery, failed)?;
        (self.on_event)(note);
        if let Some(nodes) = &mut self.nodes {
            // Node 0 may be stopped in this time.
            let until = clock() + wait;
            loop {
                let left = until.saturating_sub(clock());
                if self.stops.is_requested_within(left.min(LOOK_INTERVAL)) {
                    nodes.call_off();
                    return Err(recovery.call_off(failure));
                }
                if nodes.is_called_off() {
                    let mut failure = recovery.call_off(failure);
                    failure.causes.push(STOPPED.to_owned());
                    return Err(failure);
                }
                if left.is_zero() {
                    break;
                }
            }
        } else if self.stops.is_requested_within(wait) {
            return Err(recovery.call_off(failure));
        }
        let met = self.meet(recovery, Some(failure.clone()));
        met.map_err(|why| because(recovery.call_off(failure), &why))
    }

    /// Meets the other machines again, if there are some, after this `cause`.
    ///
    /// # Errors
    ///
    /// They do not come within `distributed.timeout`, do not fit any more, or this one is asked to
    /// stop.
    fn meet(
        &mut self,
        recovery: &mut Recovery,
        cause: Option<Box<Failure>>,
    ) -> Result<(), MeetAgainError> {
        let Some(nodes) = &mut self.nodes else { return Ok(()) };
        let mut is_called_off = || self.stops.is_requested_within(LOOK);
        let mut report =
            |line: &str| (self.on_event)(LauncherEvent::Rendezvous { words: line.to_owned() });
        let met = join_again(nodes, recovery.past(), &mut is_called_off, &mut report);
        met.inspect_err(|_| nodes.call_off())?;
        let note = recovery.adopt(nodes.plan(), nodes.past(), cause);
        note.into_iter().for_each(&mut *self.on_event);
        Ok(())
    }

    /// Starts the group once and follows it to its end; `None`: it was stopped to come back with
    /// more ranks.
    fn attempt(&mut self, recovery: &Recovery) -> Result<Option<Ended>, FailedAttempt> {
        let (plan, run, causes) = (recovery.plan(), self.run, recovery.causes());
        let processes = spawn_all(plan, run, self.start, causes, self.nodes.as_deref_mut());
        let processes = processes.map_err(|failure| {
            let failure = self.end_everywhere(failure);
            FailedAttempt { failure, step: 0, saved: 0, never_started: true, was_asked: false }
        })?;
        let watch = Watch {
            stall_timeout: plan.stall_timeout,
            deadline: plan.distributed.timeout,
            grows_after: recovery.grows_after(),
            stops: &mut self.stops,
            nodes: self.nodes.as_deref_mut(),
            on_event: &mut *self.on_event,
        };
        let group = watch.run(processes);
        let verdict = judge(&group);
        let ended = verdict.outcome(run, &group);
        let ended = match &mut self.nodes {
            Some(nodes) => {
                let is_consequence = verdict.is_consequence(&group);
                let ended = ended.map_err(|failure| node_failure(nodes, failure, is_consequence));
                nodes.conclude(ended)
            }
            None => ended,
        };
        ended.map_err(|failure| FailedAttempt {
            failure,
            step: group.members.iter().map(|member| member.step).max().unwrap_or(0),
            saved: group.saved,
            never_started: false,
            was_asked: group.asked > Some(Stop::Resize),
        })
    }

    /// Tells the other machines why this one could not even start.
    fn end_everywhere(&mut self, failure: Box<Failure>) -> Box<Failure> {
        let Some(nodes) = &mut self.nodes else { return failure };
        let failed = node_failure(nodes, failure, false);
        match nodes.conclude(Err(failed.clone())) {
            Ok(_) => failed.failure,
            Err(failure) => failure,
        }
    }
}

/// Adds a cause to a failure.
fn because(mut failure: Box<Failure>, why: &MeetAgainError) -> Box<Failure> {
    failure.causes.push(why.to_string());
    failure
}

fn node_failure(nodes: &Nodes, failure: Box<Failure>, is_consequence: bool) -> NodeFailure {
    let failure = Box::new(Failure { node: Some(nodes.node()), ..*failure });
    NodeFailure { failure, is_consequence }
}

/// Decides how the run continues after a failure, and after which wait. Of several machines node 0
/// decides for all; if it is gone, each of the others waits for it as if it had decided to go on.
///
/// # Errors
///
/// The failure is the end.
fn after_failure(
    nodes: Option<&mut Nodes>,
    recovery: &mut Recovery,
    failed: FailedAttempt,
) -> Result<(LauncherEvent, Duration), Box<Failure>> {
    let Some(nodes) = nodes.filter(|nodes| nodes.meet_again()) else {
        return recovery.after(failed);
    };
    if nodes.node() == 0 {
        let next = recovery.after(failed);
        nodes.announce(match next {
            Ok((LauncherEvent::Shrunk { .. }, _)) => Decision::Smaller,
            Ok((_, wait)) => Decision::Again { wait },
            Err(_) => Decision::Over,
        });
        return next;
    }
    match nodes.decision() {
        Some(next) => recovery.follow(failed, next),
        None => recovery.after(failed),
    }
}
