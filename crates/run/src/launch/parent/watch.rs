//! Waits for processes, sockets, signals and time, and does what [`Group`] decides.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::launch::Nodes;
use crate::launch::error_report::{ErrorReport, clock};
use crate::launch::failure::Exit;
use crate::launch::messages::{FromRank, ToRank};
use crate::launch::parent::group::{Action, Event, Group};
use crate::launch::parent::oom_kills::OomKills;
use crate::launch::parent::options::LauncherEvent;
use crate::launch::parent::spawn::Process;
use crate::launch::parent::stall::StallDetector;
use crate::launch::rank::status::RankState;
use crate::launch::signals::Signals;
use crate::plan::Patience;
use crate::transport::Waker;
use crate::transport::channel::poll;
use crate::units::Rank;

/// Time between two looks at the ranks when nothing happens.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Sources of requests to stop a run, over all restarts of its group.
pub(super) struct StopSources {
    preemption: Signals,
    interruption: Signals,
    waker: Option<Arc<Waker>>,
}

impl StopSources {
    pub(super) fn open(waker: Option<Arc<Waker>>) -> io::Result<Self> {
        let (preemption, interruption) = (Signals::of_preemption()?, Signals::of_interruption()?);
        Ok(Self { preemption, interruption, waker })
    }

    fn take_events(&mut self) -> Vec<Event> {
        let is_woken = self.waker.as_ref().is_some_and(|waker| waker.take());
        let preemptions = (self.preemption.take() + usize::from(is_woken)).min(1);
        let preempted = std::iter::repeat_n(Event::Preempted, preemptions);
        preempted.chain(std::iter::repeat_n(Event::Interrupted, self.interruption.take())).collect()
    }

    /// The descriptors to poll.
    fn fds(&self) -> Vec<PollFd<'_>> {
        let signals = [self.preemption.as_fd(), self.interruption.as_fd()];
        let waker = self.waker.as_ref().map(|waker| waker.as_fd());
        let all = signals.into_iter().chain(waker);
        all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect()
    }

    /// Waits for `time`, and returns early with `true` if the run is asked to stop.
    pub(super) fn is_requested_within(&mut self, time: Duration) -> bool {
        let until = clock() + time;
        while let Some(left) = until.checked_sub(clock()).filter(|left| !left.is_zero()) {
            let mut fds = self.fds();
            let is_broken = poll(&mut fds, Some(left)).is_err();
            drop(fds);
            if is_broken || !self.take_events().is_empty() {
                return true;
            }
        }
        false
    }
}

/// The watch over a group.
pub(super) struct Watch<'a> {
    pub(super) stall_timeout: Patience,
    /// Deadline of the ranks' collectives.
    pub(super) deadline: Duration,
    /// Checkpoints after which the group is stopped, to come back with more ranks.
    pub(super) grows_after: Option<u32>,
    pub(super) stops: &'a mut StopSources,
    pub(super) nodes: Option<&'a mut Nodes>,
    pub(super) on_event: &'a mut dyn FnMut(LauncherEvent),
}

impl Watch<'_> {
    /// Follows the ranks to their end, and returns all that is known of them.
    pub(super) fn run(mut self, mut processes: Vec<Process>) -> Group {
        let mut oom_kills = OomKills::from_now_on();
        let first = processes.first().map_or(Rank(0), |process| process.rank);
        let mut group = Group::new(processes.iter().map(|process| process.child.id()))
            .starting_at(first)
            .growing_after(self.grows_after);
        for process in &processes {
            (self.on_event)(LauncherEvent::Started { rank: process.rank, pid: process.child.id() });
        }
        let mut stall_detector =
            StallDetector::new(self.stall_timeout, self.deadline, first.index() + processes.len())
                .among_others(self.nodes.as_ref().is_some_and(|nodes| nodes.has_others()));
        let (mut inspected_at, mut inspections) = (clock(), 0);
        while !group.is_over(clock()) {
            self.wait(&processes, &group);
            let mut events = self.stops.take_events();
            for process in &mut processes {
                if group.member(process.rank).exit.is_none() {
                    receive(process, &mut oom_kills, &mut events);
                }
            }
            if let Some(nodes) = self.nodes.as_deref_mut() {
                let at = group.member(first);
                nodes.first_rank_is_at(at.step, at.phase);
                events.extend(nodes.poll().then_some(Event::FailedElsewhere));
                events.extend(nodes.can_grow().then_some(Event::Knocked));
            }
            if group.is_failing() || clock() >= inspected_at + POLL_INTERVAL {
                inspected_at = clock();
                inspections += 1;
                oom_kills.read(inspected_at);
                if let Some(process) = processes.first() {
                    process.status.write_parent_heartbeats(inspections);
                }
                inspect(&group, &processes, &mut stall_detector, &mut events);
            }
            events.push(Event::Tick);
            for event in events {
                for action in group.step(clock(), event) {
                    self.act(action, &mut processes);
                }
            }
        }
        group
    }

    /// Waits until something happens, at most until the next inspection or deadline.
    fn wait(&self, processes: &[Process], group: &Group) {
        let mut fds = self.stops.fds();
        fds.extend(self.nodes.iter().flat_map(|nodes| nodes.fds()));
        for (process, member) in processes.iter().zip(&group.members) {
            if member.exit.is_none() {
                fds.push(PollFd::new(&process.pidfd, PollFlags::IN));
                if !process.channel.is_closed() {
                    let unsent = process.channel.has_unsent();
                    let out = if unsent { PollFlags::OUT } else { PollFlags::empty() };
                    let channel = process.channel.as_fd();
                    fds.push(PollFd::from_borrowed_fd(channel, PollFlags::IN | out));
                }
            }
        }
        let deadline = group.next_deadline();
        let left =
            deadline.map_or(POLL_INTERVAL, |at| at.saturating_sub(clock()).min(POLL_INTERVAL));
        // If polling fails we spin, but still notice everything: no reason to end the ranks.
        let _ = poll(&mut fds, Some(left + Duration::from_millis(1)));
    }

    fn act(&mut self, action: Action, processes: &mut [Process]) {
        match action {
            Action::Tell(note) => (self.on_event)(note),
            Action::Kill => processes.iter().for_each(Process::kill),
            Action::Send(stop) => send(processes, &ToRank::Stop(stop)),
            Action::GiveUp => send(processes, &ToRank::GiveUp),
        }
    }
}

/// Receives the messages of a rank, then its exit, in this order, so that its last messages count.
fn receive(process: &mut Process, oom_kills: &mut OomKills, events: &mut Vec<Event>) {
    let rank = process.rank;
    let status = process.child.try_wait().ok().flatten();
    let _ = process.channel.flush();
    // Anything but a message is a bug of the rank; its exit will tell.
    for message in process.channel.receive().unwrap_or_default() {
        events.push(match message {
            FromRank::Failed(report) => Event::Failed(Box::new(ErrorReport { rank, ..*report })),
            FromRank::Finished => Event::Finished(rank),
            FromRank::Saved => Event::Saved,
            FromRank::Event(event) => Event::Recorded(event),
        });
    }
    if let Some(status) = status {
        events.push(progress(rank, process));
        events.push(Event::Denied(rank, process.status.denied(rank)));
        if exit(status) == Exit::Signal(libc::SIGKILL) && oom_kills.explain_death(clock()) {
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

fn progress(rank: Rank, process: &Process) -> Event {
    let RankState { step, phase, .. } = process.status.read(rank);
    Event::Progress(rank, step, phase)
}

/// Reads the progress of the ranks, looks for stopped processes, and for a rank that has held up
/// the others for too long.
fn inspect(
    group: &Group,
    processes: &[Process],
    stall_detector: &mut StallDetector,
    events: &mut Vec<Event>,
) {
    stall_detector.begin_inspection(clock());
    for process in processes {
        let rank = process.rank;
        let member = group.member(rank);
        if member.exit.is_none() {
            let is_stopped = is_stopped(process.child.id());
            events.push(progress(rank, process));
            events.push(Event::Stopped(rank, is_stopped));
            if member.is_at_work() {
                stall_detector.observe(rank, process.status.read(rank), is_stopped);
            }
        }
    }
    events.extend(stall_detector.stall().map(Event::Stalled));
}

/// True if `/proc` shows state T: a signal or a debugger stopped the process.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

fn send(processes: &mut [Process], message: &ToRank) {
    for process in processes {
        // A rank that cannot be reached is gone, which its process will show.
        let _ = process.channel.send(message);
    }
}
