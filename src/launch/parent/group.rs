//! What the parent knows of its ranks, and what it does about each event: pure, without clock or processes.
//!
//! ```text
//! Running ──a rank fails──▶ Settling ──200 ms──▶ Killed ──all gone, or 10 s──▶ over
//!    └──────────────────── all ranks exit ────────────────────────────────────▶ over
//! ```
//!
//! Settling gives the others time to say what they saw: the earliest error is the cause, and a failed
//! collective only a consequence. Nothing is saved meanwhile, so nothing is lost by the kill.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::launch::parent::stall::Stall;
use crate::launch::{ErrorReport, Note, Phase};
use crate::units::{Bytes, Rank};

/// Time for other ranks to report after the first failure.
const SETTLE: Duration = Duration::from_millis(200);
/// Time to leave without saving, after the second Ctrl-C.
const ABANDON: Duration = Duration::from_secs(5);
/// How long a process may live on after all ranks have done their work: one that is stopped then, or hangs while it
/// cleans up, is killed, and has done its work all the same.
const LINGER: Duration = Duration::from_secs(10);
/// Time for killed processes to vanish.
const VANISH: Duration = Duration::from_secs(10);

/// How ranks are asked to stop; the stronger counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Stop {
    /// The group is to come back with more ranks: finish the step, save, exit with [`RESIZED`].
    Resize = 1,
    /// The parent shows no sign of life: finish the step, save, exit 75.
    Unwatched,
    /// SIGTERM, SIGUSR1, SIGHUP: finish the step, save, exit 75.
    Preempt,
    /// Ctrl-C: finish the step, save, exit 130.
    Interrupt,
    /// Ctrl-C again: finish the step, exit 130.
    Abandon,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Something that the parent noticed.
#[derive(Clone, Debug)]
pub(in crate::launch) enum Event {
    /// Where a rank is.
    Progress(Rank, u64, Phase),
    /// A rank said that it failed.
    Failed(Box<ErrorReport>),
    /// A rank said that it has done all its work.
    Finished(Rank),
    /// A checkpoint is on disk.
    Saved,
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
    /// Somebody sent us SIGTERM or its like.
    Preempted,
    /// Somebody pressed Ctrl-C.
    Interrupted,
    /// Time went by.
    Tick,
}

/// What is to be done about it.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::launch) enum Action {
    /// Send this to all ranks.
    Send(Stop),
    /// Tell all ranks that they wait in vain.
    GiveUp,
    /// Kill all ranks that are left.
    Kill,
    /// Tell the caller.
    Tell(Note),
}

/// All ranks of one start of the group.
#[derive(Clone, Debug)]
pub(in crate::launch) struct Group {
    pub(in crate::launch) members: Vec<Member>,
    /// Of `members`: the others' are watched on other machines.
    first: Rank,
    stage: Stage,
    /// Who held up the group, if that is how it ended.
    stall: Option<Stall>,
    asked: Option<Stop>,
    /// Checkpoints that have reached the disk.
    saved: u32,
    /// Checkpoints after which the group shall come back with more ranks.
    grows_after: Option<u32>,
    /// When the patience after the second Ctrl-C ends.
    abandon_at: Option<Duration>,
    /// When whoever is still there is killed, since all ranks have done their work.
    linger_until: Option<Duration>,
    /// Whether the user had everything killed.
    is_abandoned: bool,
    /// Whether this group is ended because of another machine.
    has_failed_elsewhere: bool,
}

/// What is known of one rank.
#[derive(Clone, Debug)]
pub(in crate::launch) struct Member {
    pub(in crate::launch) pid: u32,
    pub(in crate::launch) step: u64,
    pub(in crate::launch) phase: Phase,
    pub(in crate::launch) report: Option<ErrorReport>,
    pub(in crate::launch) has_finished: bool,
    pub(in crate::launch) is_stopped: bool,
    pub(in crate::launch) exit: Option<(Duration, Exit)>,
    /// How it last had too little memory.
    lack: Option<Lack>,
    /// Whether it still ran when we killed the group.
    pub(in crate::launch) was_killed: bool,
}

/// How a rank had too little memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lack {
    /// The system denied it so much.
    Denied(Bytes),
    /// The kernel killed it.
    Killed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Running,
    Settling { since: Duration },
    Killed { since: Duration },
}

impl Group {
    /// Ranks that were just started, by their processes.
    pub(in crate::launch) fn new(pids: impl IntoIterator<Item = u32>) -> Self {
        Self {
            members: pids.into_iter().map(Member::new).collect(),
            first: Rank(0),
            stage: Stage::Running,
            stall: None,
            asked: None,
            saved: 0,
            grows_after: None,
            abandon_at: None,
            linger_until: None,
            is_abandoned: false,
            has_failed_elsewhere: false,
        }
    }

    /// The same, whose first rank is not 0: those before it run on other machines.
    pub(in crate::launch) fn from(self, first: Rank) -> Self {
        Self { first, ..self }
    }

    /// The first rank of this machine.
    pub(in crate::launch) fn first(&self) -> Rank {
        self.first
    }

    /// A rank of this machine.
    pub(in crate::launch) fn member(&self, rank: Rank) -> &Member {
        &self.members[rank.index() - self.first.index()]
    }

    fn member_mut(&mut self, rank: Rank) -> &mut Member {
        &mut self.members[rank.index() - self.first.index()]
    }

    /// The ranks of this machine.
    pub(in crate::launch) fn ranks(&self) -> impl Iterator<Item = (Rank, &Member)> {
        (self.first.0..).map(Rank).zip(&self.members)
    }

    /// The same, to be stopped after so many checkpoints, because it may have more ranks then.
    pub(in crate::launch) fn growing_after(self, checkpoints: Option<u32>) -> Self {
        Self { grows_after: checkpoints, ..self }
    }

    /// Why `rank` had no memory, if that is how it ended.
    pub(in crate::launch) fn lack_of_memory(&self, rank: Rank) -> Option<String> {
        let member = self.member(rank);
        match (member.exit?.1, member.lack?) {
            (Exit::Signal(libc::SIGABRT), Lack::Denied(bytes)) => {
                Some(format!("it asked for {bytes} more, which the system denied"))
            }
            (Exit::Signal(libc::SIGKILL), Lack::Killed) if !member.was_killed => {
                Some("the kernel killed it, because memory ran out".to_owned())
            }
            _ => None,
        }
    }

    /// Checkpoints that have reached the disk.
    pub(in crate::launch) fn saved(&self) -> u32 {
        self.saved
    }

    /// The strongest request to stop so far.
    pub(in crate::launch) fn asked(&self) -> Option<Stop> {
        self.asked
    }

    /// Whether the user had everything killed, or left without saving in a hurry.
    pub(in crate::launch) fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    /// Whether this group is ended because of another machine.
    pub(in crate::launch) fn has_failed_elsewhere(&self) -> bool {
        self.has_failed_elsewhere
    }

    /// Whether every process is gone, or those that are left cannot be killed.
    pub(in crate::launch) fn is_over(&self, now: Duration) -> bool {
        let given_up = matches!(self.stage, Stage::Killed { since } if now >= since + VANISH);
        given_up || self.members.iter().all(|member| member.exit.is_some())
    }

    /// Who held up the group until it was ended.
    pub(in crate::launch) fn stall(&self) -> Option<Stall> {
        self.stall
    }

    /// Whether a rank has failed.
    pub(in crate::launch) fn is_failing(&self) -> bool {
        self.stage != Stage::Running
    }

    /// When [`Event::Tick`] will change something.
    pub(in crate::launch) fn next_deadline(&self) -> Option<Duration> {
        let stage = match self.stage {
            Stage::Running => self.linger_until,
            Stage::Settling { since } => Some(since + SETTLE),
            Stage::Killed { since } => Some(since + VANISH),
        };
        [stage, self.abandon_at].into_iter().flatten().min()
    }

    /// Takes in what happened, and says what to do.
    pub(in crate::launch) fn step(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::Progress(rank, step, phase) => self.progress(rank, step, phase),
            Event::Failed(report) => self.failed(now, *report),
            Event::Finished(rank) => self.finished(now, rank),
            Event::Saved => self.saved_one(),
            Event::Denied(rank, bytes) => {
                self.member_mut(rank).lack = (bytes.0 > 0).then_some(Lack::Denied(bytes));
                vec![]
            }
            Event::KilledForMemory(rank) => {
                self.member_mut(rank).lack = Some(Lack::Killed);
                vec![]
            }
            Event::Exited(rank, exit) => self.exited(now, rank, exit),
            Event::Stopped(rank, is_stopped) => self.stopped(rank, is_stopped),
            Event::Stalled(stall) => self.stalled(now, stall),
            Event::FailedElsewhere => {
                self.has_failed_elsewhere = true;
                self.settle(now)
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
        vec![Action::Tell(Note::Progress { rank, step, phase })]
    }

    fn failed(&mut self, now: Duration, report: ErrorReport) -> Vec<Action> {
        let member = self.member_mut(report.rank);
        (member.step, member.phase) = (report.step, report.phase);
        member.report.get_or_insert(report);
        self.settle(now)
    }

    fn finished(&mut self, now: Duration, rank: Rank) -> Vec<Action> {
        self.member_mut(rank).has_finished = true;
        self.expect_exits(now);
        vec![]
    }

    /// Where all have done their work, those who are still there have not long to go.
    fn expect_exits(&mut self, now: Duration) {
        if self.members.iter().all(|member| member.has_finished || member.exit.is_some()) {
            self.linger_until.get_or_insert(now + LINGER);
        }
    }

    fn saved_one(&mut self) -> Vec<Action> {
        self.saved += 1;
        if self.stage == Stage::Running && self.grows_after.is_some_and(|n| self.saved >= n) {
            return self.ask(Stop::Resize);
        }
        vec![]
    }

    fn exited(&mut self, now: Duration, rank: Rank, exit: Exit) -> Vec<Action> {
        let member = self.member_mut(rank);
        member.exit = Some((now, exit));
        if member.fault().is_some() {
            return self.settle(now);
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
        let note =
            if is_stopped { Note::Stopped { rank, pid } } else { Note::Continued { rank, pid } };
        vec![Action::Tell(note)]
    }

    /// Those who wait shall say in what, before all are killed.
    fn stalled(&mut self, now: Duration, stall: Stall) -> Vec<Action> {
        if self.stage != Stage::Running {
            return vec![];
        }
        self.stall = Some(stall);
        self.settle(now);
        vec![Action::GiveUp]
    }

    fn ask(&mut self, stop: Stop) -> Vec<Action> {
        if self.asked >= Some(stop) {
            return vec![];
        }
        self.asked = Some(stop);
        let mut actions = vec![Action::Send(stop)];
        if stop > Stop::Resize {
            actions.push(Action::Tell(Note::Stopping { stop }));
        }
        actions
    }

    fn interrupted(&mut self, now: Duration) -> Vec<Action> {
        match self.asked {
            Some(Stop::Abandon) => self.abandon(now),
            Some(Stop::Interrupt) => {
                self.abandon_at = Some(now + ABANDON);
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
            Stage::Running if self.linger_until.is_some_and(|until| now >= until) => self.kill(now),
            Stage::Settling { since } if now >= since + SETTLE => self.kill(now),
            _ => vec![],
        }
    }

    fn abandon(&mut self, now: Duration) -> Vec<Action> {
        (self.is_abandoned, self.abandon_at) = (true, None);
        self.kill(now)
    }

    fn settle(&mut self, now: Duration) -> Vec<Action> {
        if self.stage == Stage::Running {
            self.stage = Stage::Settling { since: now };
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

/// Why a rank counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::launch) enum Fault {
    /// It said so.
    Reported,
    /// A signal that we did not send.
    Signal(i32),
    /// A code that means failure, without a word.
    Code(i32),
    /// A code that means success or a stop, but it had not finished.
    Left(i32),
}

/// Code of a rank that left so that its group can come back with more ranks; never that of a program.
pub const RESIZED: u8 = 76;

/// Codes of a rank that did what it should: done, expectation missed, stopped and saved, interrupted.
pub(in crate::launch) const ORDERLY: [i32; 5] = [0, 9, 75, RESIZED as i32, 130];

impl Member {
    /// Whether it has work left, as far as anybody has said.
    pub(in crate::launch) fn is_at_work(&self) -> bool {
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
            lack: None,
            was_killed: false,
        }
    }

    /// Whether and why this rank failed by itself.
    pub(in crate::launch) fn fault(&self) -> Option<Fault> {
        if self.report.is_some() {
            return Some(Fault::Reported);
        }
        match self.exit?.1 {
            _ if self.was_killed => None,
            Exit::Signal(signal) => Some(Fault::Signal(signal)),
            Exit::Code(code) if !ORDERLY.contains(&code) => Some(Fault::Code(code)),
            Exit::Code(code) => (!self.has_finished).then_some(Fault::Left(code)),
        }
    }

    /// When it failed.
    pub(in crate::launch) fn fault_time(&self) -> Duration {
        let reported = self.report.as_ref().map(|report| report.monotonic);
        reported.or(self.exit.map(|(at, _)| at)).unwrap_or(Duration::MAX)
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(number) => match signal_hook::low_level::signal_name(*number) {
                Some(name) => write!(f, "was killed by {name}"),
                None => write!(f, "was killed by signal {number}"),
            },
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Resize | Self::Preempt | Self::Interrupt => "finish the step, save and leave",
            Self::Unwatched => "save and leave, as the parent shows no sign of life",
            Self::Abandon => "leave without saving",
        })
    }
}

#[cfg(test)]
mod tests;
