//! The parent's state machine for its ranks: event -> new state and actions. Pure, without clock or
//! processes.
//!
//! ```text
//! Running ──a rank fails──▶ GracePeriod ──200 ms──▶ Killed ──all gone, or 10 s──▶ over
//!    └──────────────────── all ranks exit ────────────────────────────────────▶ over
//! ```
//!
//! The grace period gives the others time to report: the earliest error is the cause, and a failed
//! collective only a consequence. Nothing is saved meanwhile, so nothing is lost by the kill.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::event::Phase;
use crate::event::Stop;
use crate::launch::error_report::ErrorReport;
use crate::launch::failure::Exit;
use crate::launch::parent::options::LauncherEvent;
use crate::launch::parent::stall::Stall;
use crate::units::{Bytes, Rank};
use crate::user_error::ExitCode;

/// Time for other ranks to report after the first failure.
const GRACE_PERIOD: Duration = Duration::from_millis(200);
/// Time to exit without saving, after the second Ctrl-C.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for processes to exit once all ranks have done their work. One that is stopped then, or
/// hangs in its cleanup, is killed, and the run has succeeded all the same.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for killed processes to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// Something that the parent noticed.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// Step and phase of a rank.
    Progress(Rank, u64, Phase),
    /// A rank said that it failed.
    Failed(Box<ErrorReport>),
    /// A rank said that it has done all its work.
    Finished(Rank),
    /// A checkpoint is on disk.
    Saved,
    /// Rank 0 has recorded an event of the run.
    Recorded(Map<String, Value>),
    /// The system denied a rank so much memory.
    Denied(Rank, Bytes),
    /// The kernel has killed a rank because memory ran out.
    KilledForMemory(Rank),
    /// A process is gone.
    Exited(Rank, Exit),
    /// A process was found stopped (or running again).
    Stopped(Rank, bool),
    /// A rank has held up the group for too long.
    Stalled(Stall),
    /// Another machine has failed.
    FailedElsewhere,
    /// Another machine wants to take part.
    Knocked,
    /// SIGTERM or a similar signal arrived.
    Preempted,
    /// Ctrl-C was pressed.
    Interrupted,
    /// Time has passed.
    Tick,
}

/// An action of the parent in answer to an [`Event`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Send this to all ranks.
    Send(Stop),
    /// Tell all ranks to wait no longer for each other.
    GiveUp,
    /// Kill all ranks that are left.
    Kill,
    /// Tell the caller.
    Tell(LauncherEvent),
}

/// All ranks of one start of the group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) members: Vec<Member>,
    /// The first of `members`: others are watched on other machines.
    pub(super) first: Rank,
    stage: Stage,
    /// The rank that held up the group, if that is how it ended.
    pub(super) stall: Option<Stall>,
    /// The strongest request to stop so far.
    pub(super) asked: Option<Stop>,
    /// Checkpoints that have reached the disk.
    pub(super) saved: u32,
    /// Checkpoints after which the group shall come back with more ranks.
    grows_after: Option<u32>,
    /// When the group is killed after the second Ctrl-C.
    abandon_at: Option<Duration>,
    /// When the processes that are left are killed, as all ranks have done their work.
    exit_deadline: Option<Duration>,
    /// True if the user had all ranks killed.
    pub(super) is_abandoned: bool,
    /// True if this group is ended because of another machine.
    pub(super) has_failed_elsewhere: bool,
}

/// The state of one rank.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) pid: u32,
    pub(super) step: u64,
    pub(super) phase: Phase,
    pub(super) report: Option<ErrorReport>,
    pub(super) has_finished: bool,
    pub(super) is_stopped: bool,
    pub(super) exit: Option<(Duration, Exit)>,
    /// Last shortage of memory.
    out_of_memory: Option<OutOfMemory>,
    /// True if it still ran when we killed the group.
    pub(super) was_killed: bool,
}

/// A rank's shortage of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum OutOfMemory {
    /// The system denied it so many bytes.
    Denied(Bytes),
    /// The kernel killed it.
    Killed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Running,
    GracePeriod { since: Duration },
    Killed { since: Duration },
}

impl Group {
    /// Ranks that were just started, by their processes.
    pub(super) fn new(pids: impl IntoIterator<Item = u32>) -> Self {
        Self {
            members: pids.into_iter().map(Member::new).collect(),
            first: Rank(0),
            stage: Stage::Running,
            stall: None,
            asked: None,
            saved: 0,
            grows_after: None,
            abandon_at: None,
            exit_deadline: None,
            is_abandoned: false,
            has_failed_elsewhere: false,
        }
    }

    /// The same, with `first` as its first rank: those before it run on other machines.
    pub(super) fn starting_at(self, first: Rank) -> Self {
        Self { first, ..self }
    }

    /// A rank of this machine.
    pub(super) fn member(&self, rank: Rank) -> &Member {
        &self.members[rank.index() - self.first.index()]
    }

    fn member_mut(&mut self, rank: Rank) -> &mut Member {
        &mut self.members[rank.index() - self.first.index()]
    }

    /// The ranks of this machine.
    pub(super) fn ranks(&self) -> impl Iterator<Item = (Rank, &Member)> {
        (self.first.0..).map(Rank).zip(&self.members)
    }

    /// The same, to be stopped after so many checkpoints, because it may have more ranks then.
    pub(super) fn growing_after(self, checkpoints: Option<u32>) -> Self {
        Self { grows_after: checkpoints, ..self }
    }

    /// Returns the cause if `rank` ended by a lack of memory.
    pub(super) fn lack_of_memory(&self, rank: Rank) -> Option<String> {
        let member = self.member(rank);
        match (member.exit?.1, member.out_of_memory?) {
            (Exit::Signal(libc::SIGABRT), OutOfMemory::Denied(bytes)) => {
                Some(format!("it asked for {bytes} more, which the system denied"))
            }
            (Exit::Signal(libc::SIGKILL), OutOfMemory::Killed) if !member.was_killed => {
                Some("the kernel killed it, because memory ran out".to_owned())
            }
            _ => None,
        }
    }

    /// True if every process is gone, or those that are left cannot be killed.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        let given_up = matches!(self.stage, Stage::Killed { since } if now >= since + KILL_TIMEOUT);
        given_up || self.members.iter().all(|member| member.exit.is_some())
    }

    /// True if a rank has failed.
    pub(super) fn is_failing(&self) -> bool {
        self.stage != Stage::Running
    }

    /// When [`Event::Tick`] will change something.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let stage = match self.stage {
            Stage::Running => self.exit_deadline,
            Stage::GracePeriod { since } => Some(since + GRACE_PERIOD),
            Stage::Killed { since } => Some(since + KILL_TIMEOUT),
        };
        [stage, self.abandon_at].into_iter().flatten().min()
    }

    /// Handles an event, and returns the actions that follow.
    pub(super) fn step(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::Progress(rank, step, phase) => self.progress(rank, step, phase),
            Event::Failed(report) => self.failed(now, *report),
            Event::Finished(rank) => self.finished(now, rank),
            Event::Saved => self.checkpoint_saved(),
            Event::Recorded(event) => vec![Action::Tell(LauncherEvent::Recorded(event))],
            Event::Denied(rank, bytes) => {
                self.member_mut(rank).out_of_memory =
                    (bytes.0 > 0).then_some(OutOfMemory::Denied(bytes));
                vec![]
            }
            Event::KilledForMemory(rank) => {
                self.member_mut(rank).out_of_memory = Some(OutOfMemory::Killed);
                vec![]
            }
            Event::Exited(rank, exit) => self.exited(now, rank, exit),
            Event::Stopped(rank, is_stopped) => self.stopped(rank, is_stopped),
            Event::Stalled(stall) => self.stalled(now, stall),
            Event::FailedElsewhere => {
                self.has_failed_elsewhere = true;
                self.begin_grace_period(now)
            }
            Event::Knocked => {
                self.grows_after.get_or_insert(1);
                self.make_room()
            }
            Event::Preempted => self.ask(Stop::Preempt),
            Event::Interrupted => self.interrupted(now),
            Event::Tick => self.tick(now),
        }
    }

    fn progress(&mut self, rank: Rank, step: u64, phase: Phase) -> Vec<Action> {
        let member = self.member_mut(rank);
        if (member.step, member.phase) == (step, phase) {
            return vec![];
        }
        (member.step, member.phase) = (step, phase);
        vec![Action::Tell(LauncherEvent::Progress { rank, step, phase })]
    }

    fn failed(&mut self, now: Duration, report: ErrorReport) -> Vec<Action> {
        let member = self.member_mut(report.rank);
        (member.step, member.phase) = (report.step, report.phase);
        member.report.get_or_insert(report);
        self.begin_grace_period(now)
    }

    fn finished(&mut self, now: Duration, rank: Rank) -> Vec<Action> {
        self.member_mut(rank).has_finished = true;
        self.expect_exits(now);
        vec![]
    }

    /// Once all have done their work, their processes have [`EXIT_TIMEOUT`] left.
    fn expect_exits(&mut self, now: Duration) {
        if self.members.iter().all(|member| member.has_finished || member.exit.is_some()) {
            self.exit_deadline.get_or_insert(now + EXIT_TIMEOUT);
        }
    }

    fn checkpoint_saved(&mut self) -> Vec<Action> {
        self.saved += 1;
        self.make_room()
    }

    /// Stops for a larger group, if it is time to.
    fn make_room(&mut self) -> Vec<Action> {
        if self.stage == Stage::Running && self.grows_after.is_some_and(|n| self.saved >= n) {
            return self.ask(Stop::Resize);
        }
        vec![]
    }

    fn exited(&mut self, now: Duration, rank: Rank, exit: Exit) -> Vec<Action> {
        let member = self.member_mut(rank);
        member.exit = Some((now, exit));
        if member.fault().is_some() {
            return self.begin_grace_period(now);
        }
        self.expect_exits(now);
        vec![]
    }

    fn stopped(&mut self, rank: Rank, is_stopped: bool) -> Vec<Action> {
        let is_killed = matches!(self.stage, Stage::Killed { .. });
        let member = self.member_mut(rank);
        // A stopped process that we kill is running for a moment: that changes nothing.
        let is_news = member.is_stopped != is_stopped;
        if !is_news || member.exit.is_some() || is_killed {
            return vec![];
        }
        member.is_stopped = is_stopped;
        let pid = member.pid;
        let note = if is_stopped {
            LauncherEvent::Stopped { rank, pid }
        } else {
            LauncherEvent::Continued { rank, pid }
        };
        vec![Action::Tell(note)]
    }

    /// The ranks that wait report in which call, before all are killed.
    fn stalled(&mut self, now: Duration, stall: Stall) -> Vec<Action> {
        if self.stage != Stage::Running {
            return vec![];
        }
        self.stall = Some(stall);
        self.begin_grace_period(now);
        vec![Action::GiveUp]
    }

    fn ask(&mut self, stop: Stop) -> Vec<Action> {
        if self.asked >= Some(stop) {
            return vec![];
        }
        self.asked = Some(stop);
        let mut actions = vec![Action::Send(stop)];
        if stop > Stop::Resize {
            actions.push(Action::Tell(LauncherEvent::Stopping { stop }));
        }
        actions
    }

    fn interrupted(&mut self, now: Duration) -> Vec<Action> {
        match self.asked {
            Some(Stop::Abandon) => self.abandon(now),
            Some(Stop::Interrupt) => {
                self.abandon_at = Some(now + ABANDON_TIMEOUT);
                self.ask(Stop::Abandon)
            }
            _ => self.ask(Stop::Interrupt),
        }
    }

    fn tick(&mut self, now: Duration) -> Vec<Action> {
        if self.abandon_at.is_some_and(|at| now >= at) {
            return self.abandon(now);
        }
        match self.stage {
            Stage::Running if self.exit_deadline.is_some_and(|until| now >= until) => {
                self.kill(now)
            }
            Stage::GracePeriod { since } if now >= since + GRACE_PERIOD => self.kill(now),
            _ => vec![],
        }
    }

    fn abandon(&mut self, now: Duration) -> Vec<Action> {
        (self.is_abandoned, self.abandon_at) = (true, None);
        self.kill(now)
    }

    fn begin_grace_period(&mut self, now: Duration) -> Vec<Action> {
        if self.stage == Stage::Running {
            self.stage = Stage::GracePeriod { since: now };
        }
        vec![]
    }

    fn kill(&mut self, now: Duration) -> Vec<Action> {
        if matches!(self.stage, Stage::Killed { .. }) {
            return vec![];
        }
        self.stage = Stage::Killed { since: now };
        for member in &mut self.members {
            member.was_killed = member.exit.is_none();
        }
        vec![Action::Kill]
    }
}

/// The reason why a rank counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It reported an error.
    Reported,
    /// A signal that we did not send.
    Signal(i32),
    /// A code that means failure, without a report.
    Code(i32),
    /// A code that means success or a stop, but it had not finished.
    ExitedEarly(i32),
}

/// Exit codes of a rank without a fault: completed, expectation missed, stopped and saved, resized,
/// interrupted.
const ORDERLY_EXITS: [i32; 5] = [
    ExitCode::Ok as i32,
    ExitCode::Expectation as i32,
    ExitCode::Preempted as i32,
    ExitCode::Resized as i32,
    ExitCode::Interrupted as i32,
];

impl Member {
    /// True if it has work left, as far as is known.
    pub(super) fn is_at_work(&self) -> bool {
        self.exit.is_none() && self.report.is_none() && !self.has_finished
    }

    fn new(pid: u32) -> Self {
        Self {
            pid,
            step: 0,
            phase: Phase::Starting,
            report: None,
            has_finished: false,
            is_stopped: false,
            exit: None,
            out_of_memory: None,
            was_killed: false,
        }
    }

    /// Returns the reason why this rank counts as failed by itself, if it does.
    pub(super) fn fault(&self) -> Option<Fault> {
        if self.report.is_some() {
            return Some(Fault::Reported);
        }
        match self.exit?.1 {
            _ if self.was_killed => None,
            Exit::Signal(signal) => Some(Fault::Signal(signal)),
            Exit::Code(code) if !ORDERLY_EXITS.contains(&code) => Some(Fault::Code(code)),
            Exit::Code(code) => (!self.has_finished).then_some(Fault::ExitedEarly(code)),
        }
    }

    /// When it failed.
    pub(super) fn fault_time(&self) -> Duration {
        let reported = self.report.as_ref().map(|report| report.monotonic);
        reported.or(self.exit.map(|(at, _)| at)).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests;
