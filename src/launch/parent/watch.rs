//! Waits for processes, sockets, signals and time, and does what `supervise` says.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::launch::error_report::clock;
use crate::launch::messages::{FromRank, ToRank};
use crate::launch::parent::group::{Action, Event, Exit, Group};
use crate::launch::parent::oom_kills::Kills;
use crate::launch::parent::spawn::Process;
use crate::launch::parent::stall::StallDetector;
use crate::launch::rank::status::Sign;
use crate::launch::signals::Signals;
use crate::launch::{Nodes, Note, error_report};
use crate::plan::Patience;
use crate::transport::Waker;
use crate::transport::channel::poll;
use crate::units::Rank;

/// How often ranks are looked at when nothing happens.
const LOOK: Duration = Duration::from_millis(200);

/// The parent's signals, over all restarts of the group.
pub(in crate::launch) struct Ears {
    pub(in crate::launch) preemption: Signals,
    pub(in crate::launch) interruption: Signals,
    pub(in crate::launch) waker: Option<Arc<Waker>>,
}

impl Ears {
    pub(in crate::launch) fn open(waker: Option<Arc<Waker>>) -> io::Result<Self> {
        let (preemption, interruption) = (Signals::of_preemption()?, Signals::of_interruption()?);
        Ok(Self { preemption, interruption, waker })
    }

    fn events(&mut self) -> Vec<Event> {
        let is_rung = self.waker.as_ref().is_some_and(|waker| waker.take());
        let calls = (self.preemption.take() + usize::from(is_rung)).min(1);
        let preempted = std::iter::repeat_n(Event::Preempted, calls);
        preempted.chain(std::iter::repeat_n(Event::Interrupted, self.interruption.take())).collect()
    }

    /// What to wait for.
    fn fds(&self) -> Vec<PollFd<'_>> {
        let signals = [self.preemption.as_fd(), self.interruption.as_fd()];
        let waker = self.waker.as_ref().map(|waker| waker.as_fd());
        let all = signals.into_iter().chain(waker);
        all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect()
    }

    /// Waits; whether a signal ended the wait.
    pub(in crate::launch) fn is_called_within(&mut self, time: Duration) -> bool {
        let until = clock() + time;
        while let Some(left) = until.checked_sub(clock()).filter(|left| !left.is_zero()) {
            let mut fds = self.fds();
            let is_broken = poll(&mut fds, Some(left)).is_err();
            drop(fds);
            if is_broken || !self.events().is_empty() {
                return true;
            }
        }
        false
    }
}

/// Follows the ranks to their end, or until they were stopped after `grows_after` checkpoints, and returns all
/// that is known of them.
pub(in crate::launch) fn watch(
    mut processes: Vec<Process>,
    (patience, grows_after): (Patience, Option<u32>),
    ears: &mut Ears,
    mut nodes: Option<&mut Nodes>,
    on_note: &mut dyn FnMut(Note),
) -> Group {
    let mut kills = Kills::from_now_on();
    let mut group =
        Group::new(processes.iter().map(|process| process.child.id())).growing_after(grows_after);
    let first = processes.first().map_or(Rank(0), |process| process.rank);
    group = group.from(first);
    for process in &processes {
        on_note(Note::Started { rank: process.rank, pid: process.child.id() });
    }
    let stall_detector = StallDetector::new(patience, first.index() + processes.len());
    let (mut looked, mut stall_detector) = (clock(), stall_detector.among_others(nodes.is_some()));
    let mut looks = 0;
    while !group.is_over(clock()) {
        wait(&processes, ears, nodes.as_deref(), &group);
        let mut events = ears.events();
        for process in &mut processes {
            if group.member(process.rank).exit.is_none() {
                listen(process, &mut kills, &mut events);
            }
        }
        if nodes.as_deref_mut().is_some_and(Nodes::look) {
            events.push(Event::FailedElsewhere);
        }
        if group.is_failing() || clock() >= looked + LOOK {
            looked = clock();
            looks += 1;
            kills.look(looked);
            processes.iter().take(1).for_each(|process| process.status.look(looks));
            look(&group, &processes, &mut stall_detector, &mut events);
        }
        events.push(Event::Tick);
        for event in events {
            let actions = group.step(clock(), event);
            for action in actions {
                act(action, &mut processes, on_note);
            }
        }
    }
    group
}

/// Until something happens, at most until the next look or deadline.
fn wait(processes: &[Process], ears: &Ears, nodes: Option<&Nodes>, group: &Group) {
    let mut fds = ears.fds();
    fds.extend(nodes.into_iter().flat_map(Nodes::fds));
    for (process, member) in processes.iter().zip(&group.members) {
        if member.exit.is_none() {
            fds.push(PollFd::new(&process.pidfd, PollFlags::IN));
            if !process.channel.is_closed() {
                let out =
                    if process.channel.has_unsent() { PollFlags::OUT } else { PollFlags::empty() };
                fds.push(PollFd::from_borrowed_fd(process.channel.as_fd(), PollFlags::IN | out));
            }
        }
    }
    let left = group.next_deadline().map_or(LOOK, |at| at.saturating_sub(clock()).min(LOOK));
    // Without a poll we would spin, but still notice everything: no reason to give up the ranks.
    let _ = poll(&mut fds, Some(left + Duration::from_millis(1)));
}

/// What a rank has said, and whether it is gone; in this order, so that its last words count.
fn listen(process: &mut Process, kills: &mut Kills, events: &mut Vec<Event>) {
    let rank = process.rank;
    let status = process.child.try_wait().ok().flatten();
    let _ = process.channel.flush();
    // A rank that sends what is no message is our bug; its exit will tell.
    for message in process.channel.receive().unwrap_or_default() {
        events.push(match message {
            FromRank::Failed(report) => {
                Event::Failed(Box::new(error_report::ErrorReport { rank, ..*report }))
            }
            FromRank::Finished => Event::Finished(rank),
            FromRank::Saved => Event::Saved,
        });
    }
    if let Some(status) = status {
        events.push(rank_status(rank, process));
        events.push(Event::Denied(rank, process.status.denied(rank)));
        if exit(status) == Exit::Signal(libc::SIGKILL) && kills.explain_death(clock()) {
            events.push(Event::KilledForMemory(rank));
        }
        events.push(Event::Exited(rank, exit(status)));
    }
}

fn exit(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, signal) => Exit::Signal(signal.unwrap_or(0)),
    }
}

fn rank_status(rank: Rank, process: &Process) -> Event {
    let Sign { step, phase, .. } = process.status.read(rank);
    Event::Progress(rank, step, phase)
}

/// Where the ranks are, which of them stand still, and whether one has done so for too long.
fn look(
    group: &Group,
    processes: &[Process],
    stall_detector: &mut StallDetector,
    events: &mut Vec<Event>,
) {
    stall_detector.look(clock());
    for process in processes {
        let rank = process.rank;
        let member = group.member(rank);
        if member.exit.is_none() {
            let is_stopped = is_stopped(process.child.id());
            events.push(rank_status(rank, process));
            events.push(Event::Stopped(rank, is_stopped));
            if member.is_at_work() {
                stall_detector.see(rank, process.status.read(rank), is_stopped);
            }
        }
    }
    events.extend(stall_detector.stall().map(Event::Stalled));
}

/// Whether `/proc` says state T: a signal stopped the process, or a debugger.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

fn act(action: Action, processes: &mut [Process], on_note: &mut dyn FnMut(Note)) {
    match action {
        Action::Tell(note) => on_note(note),
        Action::Kill => processes.iter().for_each(Process::kill),
        Action::Send(stop) => send(processes, &ToRank::Stop(stop)),
        Action::GiveUp => send(processes, &ToRank::GiveUp),
    }
}

fn send(processes: &mut [Process], message: &ToRank) {
    for process in processes {
        // A rank that cannot be told is gone, which its process will say.
        let _ = process.channel.send(message);
    }
}
