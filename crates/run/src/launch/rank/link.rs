//! A rank's link to its parent or launcher: progress, errors and requests to stop.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::process::Signal;
use serde_json::{Map, Value};

use crate::event::Stop;
use crate::failpoint;
use crate::files;
use crate::launch::Phase;
use crate::launch::error_report::{Blame, ErrorReport, FORMAT, chain, clock, host, report_file};
use crate::launch::messages::{FromRank, PreparedRun, ToRank};
use crate::launch::rank::env::ExternalRank;
use crate::launch::rank::parent_watchdog::ParentWatchdog;
use crate::launch::rank::peer_monitor::PeerMonitor;
use crate::launch::rank::status::RankStatus;
use crate::launch::signals::Signals;
use crate::plan::RankPlan;
use crate::transport::Peer;
use crate::transport::channel::{Channel, poll};
use crate::units::Rank;
use crate::user_error::ExitCode;

/// Longest time to send to a parent that does not read.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which a second SIGTERM counts as one. The first may arrive twice: sent to all
/// processes of a job, and forwarded by the launcher.
const MIN_SIGTERM_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// Everything that a rank needs to take part in its group.
pub struct Membership {
    pub rank_plan: RankPlan,
    /// The memory that the ranks of this machine share; absent if they share none.
    pub shm: Option<OwnedFd>,
    /// The first ranks of the other machines, for the first one of this.
    pub peers: Vec<Peer>,
    pub link: Link,
}

impl Membership {
    /// A rank that another launcher started. The launcher does not say why it started the group
    /// again.
    ///
    /// # Errors
    ///
    /// No descriptor or thread is left.
    pub(in crate::launch) fn of_foreign(
        foreign: &ExternalRank,
        prepared: PreparedRun,
        shm: Option<OwnedFd>,
        peers: Vec<Peer>,
        peer_monitor: PeerMonitor,
    ) -> io::Result<Self> {
        let ExternalRank { rank, restarts, .. } = *foreign;
        let PreparedRun { plan, folders: run, resume } = prepared;
        let link = Link::open(None, None, peer_monitor, rank, run.logs.clone())?;
        let rank_plan = RankPlan { plan, rank, run, resume, restarts, causes: vec![] };
        Ok(Self { rank_plan, shm, peers, link })
    }
}

/// The link of one rank. Its thread ends with it.
pub struct Link {
    shared: Arc<Shared>,
    rank: Rank,
    logs: PathBuf,
    step: AtomicU64,
    phase: AtomicU8,
    /// Number of progress reports.
    progress: AtomicU64,
    /// Read by the parent; absent under a foreign launcher.
    status: Option<Arc<RankStatus>>,
    /// Wakes the thread: it ends when this is closed.
    waker: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// Ends the group of ranks for this reason.
type EndGroup = dyn Fn(&str) + Send + Sync;

struct Shared {
    /// Strongest request to stop: 0, or a [`Stop`].
    stop: AtomicU8,
    is_ending: AtomicBool,
    /// To our own parent; absent under a foreign launcher.
    channel: Option<Mutex<Channel>>,
    /// To the other ranks of a foreign launcher.
    peers: Mutex<Vec<Channel>>,
    /// Stops waiting for other ranks.
    give_up: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// The reason why the group cannot continue.
    lost: OnceLock<String>,
    end_group: OnceLock<Box<EndGroup>>,
}

impl Link {
    /// Starts listening: to our parent through `channel`, which also forwards Ctrl-C, or to signals
    /// and `peer_monitor`. Reports are written into the folder `logs`. `status` holds this rank's
    /// state and the parent's heartbeats; without one for the given time this rank requests to save
    /// and stop.
    ///
    /// # Errors
    ///
    /// No descriptor or thread is left.
    pub(in crate::launch) fn open(
        channel: Option<Channel>,
        status: Option<(RankStatus, Duration)>,
        peer_monitor: PeerMonitor,
        rank: Rank,
        logs: PathBuf,
    ) -> io::Result<Self> {
        let preemption = Signals::of_preemption()?;
        let interruption = if channel.is_none() { Some(Signals::of_interruption()?) } else { None };
        let (waker, woken) = UnixStream::pair()?;
        let control =
            channel.as_ref().map(|channel| channel.as_fd().try_clone_to_owned()).transpose()?;
        let (status, timeout) = status.map(|(status, time)| (Arc::new(status), time)).unzip();
        if let Some(status) = &status {
            status.record_denials(rank)?;
        }
        let shared = Arc::new(Shared {
            stop: AtomicU8::new(0),
            is_ending: AtomicBool::new(false),
            channel: channel.map(Mutex::new),
            peers: Mutex::new(peer_monitor.clone_channels()?),
            give_up: OnceLock::new(),
            lost: OnceLock::new(),
            end_group: OnceLock::new(),
        });
        let own_status = status.clone().map(|status| (status, rank));
        let max_gap = 2 * HEARTBEAT_INTERVAL;
        let watchdog = timeout.map(|timeout| ParentWatchdog::new(timeout, max_gap, clock()));
        let mut listener = Listener {
            shared: Arc::clone(&shared),
            preemption,
            preempted: None,
            interruption,
            woken,
            control,
            peer_monitor,
            status: own_status,
            heartbeats: 0,
            watchdog,
        };
        let thread =
            std::thread::Builder::new().name("link".to_owned()).spawn(move || listener.listen())?;
        let (step, phase, progress) = (AtomicU64::new(0), AtomicU8::new(0), AtomicU64::new(0));
        let link = Self {
            shared,
            rank,
            logs,
            step,
            phase,
            progress,
            status,
            waker: Some(waker),
            thread: Some(thread),
        };
        link.progress(0, Phase::Joining);
        Ok(link)
    }

    /// Reports the step and phase of this rank, in well under a microsecond; the parent knows them
    /// even if this process is killed next.
    pub fn progress(&self, step: u64, phase: Phase) {
        self.step.store(step, Ordering::Relaxed);
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.write_status();
        failpoint::enter_step(step);
        failpoint::reach(phase.point());
    }

    /// Reports that this rank makes progress in the same phase.
    pub fn still_moving(&self) {
        self.write_status();
    }

    fn write_status(&self) {
        let progress = self.progress.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(status) = &self.status {
            let phase = Phase::from_number(self.phase.load(Ordering::Relaxed));
            status.write(self.rank, self.step.load(Ordering::Relaxed), phase, progress);
        }
    }

    /// Sets the callback, called on another thread, by which the parent, or without a parent a
    /// second SIGTERM, tells this rank to wait no longer for others. Only the first call counts.
    pub fn on_give_up(&self, give_up: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.give_up.set(Box::new(give_up));
    }

    /// Sets the callback, called with the reason, for when another rank of a foreign launcher died
    /// or failed, even before this call. Only the first call counts.
    pub fn on_rank_lost(&self, end_group: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.shared.end_group.set(Box::new(end_group));
        self.shared.end_group_if_lost();
    }

    /// The strongest request to stop so far, by the parent or by a signal to this process. Ranks
    /// may learn of it at different steps: they vote.
    pub fn stop_requested(&self) -> Option<Stop> {
        self.shared.stop()
    }

    /// A report of an error of this rank, with the messages of all its sources.
    pub fn describe(
        &self,
        error: &(dyn std::error::Error + 'static),
        exit_code: ExitCode,
        blame: Blame,
    ) -> ErrorReport {
        let mut messages = chain(error).into_iter();
        let message = messages.next().unwrap_or_default();
        let mut report = self.describe_message(message, exit_code, blame);
        report.causes = messages.collect();
        report
    }

    /// [`Link::describe`] for a panic, which has no error value.
    pub fn describe_message(
        &self,
        message: String,
        exit_code: ExitCode,
        blame: Blame,
    ) -> ErrorReport {
        ErrorReport {
            format: FORMAT,
            rank: self.rank,
            pid: std::process::id(),
            host: host(),
            monotonic: clock(),
            time: jiff::Timestamp::now(),
            phase: Phase::from_number(self.phase.load(Ordering::Relaxed)),
            step: self.step.load(Ordering::Relaxed),
            exit_code,
            blame,
            suspects: vec![],
            out_of_memory: false,
            message,
            causes: vec![],
            place: None,
            help: None,
        }
    }

    /// Sends the report to the parent, and writes `rank-N.error.json`. The process then exits with
    /// `report.exit_code`.
    ///
    /// # Errors
    ///
    /// The file cannot be written; the parent has the report.
    pub fn report(&self, report: &ErrorReport) -> Result<(), files::Error> {
        self.send(&FromRank::Failed(Box::new(report.clone())));
        let text = serde_json::to_vec_pretty(report).unwrap_or_default();
        files::write_atomic(&self.logs.join(report_file(self.rank)), &text)
    }

    /// Reports that this rank has done all its work, or has stopped as asked and saved. An exit
    /// with code 0 without it is a failure.
    pub fn finish(&self) {
        self.send(&FromRank::Finished);
    }

    /// Reports that a checkpoint is on disk. What a stopped parent does not read is sent with the
    /// next message.
    pub fn saved(&self) {
        if let Some(mut channel) = self.shared.channel() {
            let _ = channel.send(&FromRank::Saved);
        }
    }

    /// Sends an event that this rank has recorded to the parent. Bytes that the parent does not
    /// read now are sent with a later message.
    pub fn recorded(&self, event: Map<String, Value>) {
        if let Some(mut channel) = self.shared.channel() {
            let _ = channel.send(&FromRank::Event(event));
        }
    }

    fn send(&self, message: &FromRank) {
        if let Some(mut channel) = self.shared.channel() {
            // A parent that is gone or does not read cannot be told; our exit tells the rest.
            let _ = channel.send_all(message, SEND_TIMEOUT);
        }
        let mut peers = self.shared.peers.lock().unwrap_or_else(PoisonError::into_inner);
        for peer in &mut *peers {
            let _ = peer.send_all(message, SEND_TIMEOUT);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        drop(self.waker.take());
        if let Some(thread) = self.thread.take() {
            // An error means that it panicked, which no longer matters.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A thread that panicked while sending leaves at worst half a message, after which the parent
    /// reads no more.
    fn channel(&self) -> Option<MutexGuard<'_, Channel>> {
        self.channel.as_ref().map(|channel| channel.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The strongest request so far.
    fn stop(&self) -> Option<Stop> {
        Stop::from_number(self.stop.load(Ordering::Relaxed))
    }

    fn ask(&self, stop: Stop) {
        self.stop.fetch_max(stop as u8, Ordering::Relaxed);
    }

    fn give_up(&self) {
        self.give_up.get().into_iter().for_each(|give_up| give_up());
    }

    /// Ends the group if a rank was lost and [`Link::on_rank_lost`] was called.
    fn end_group_if_lost(&self) {
        if let (Some(why), Some(end_group)) = (self.lost.get(), self.end_group.get()) {
            end_group(why);
        }
    }
}

/// State of the link's thread.
struct Listener {
    shared: Arc<Shared>,
    preemption: Signals,
    /// When the first of them arrived.
    preempted: Option<Duration>,
    interruption: Option<Signals>,
    woken: UnixStream,
    /// The channel's socket, to poll it without its lock.
    control: Option<OwnedFd>,
    peer_monitor: PeerMonitor,
    /// File for heartbeats.
    status: Option<(Arc<RankStatus>, Rank)>,
    heartbeats: u64,
    watchdog: Option<ParentWatchdog>,
}

impl Listener {
    fn listen(&mut self) {
        while !self.shared.is_ending.load(Ordering::Relaxed) {
            if self.wait().is_err() {
                return;
            }
            self.show_heartbeat();
            self.check_parent_heartbeats();
            self.check_signals();
            self.receive_from_parent();
            self.check_peers();
        }
    }

    fn show_heartbeat(&mut self) {
        self.heartbeats += 1;
        if let Some((status, rank)) = &self.status {
            status.write_heartbeats(*rank, self.heartbeats);
        }
    }

    /// A parent that is stopped would not notice that a rank hangs or died, nor forward a request
    /// to stop.
    fn check_parent_heartbeats(&mut self) {
        let (Some((status, _)), Some(watchdog)) = (&self.status, &mut self.watchdog) else {
            return;
        };
        if watchdog.has_timed_out(status.parent_heartbeats(), clock()) {
            self.shared.ask(Stop::Unwatched);
        }
    }

    fn wait(&self) -> io::Result<()> {
        let mut fds = vec![
            PollFd::new(&self.woken, PollFlags::IN),
            PollFd::new(&self.preemption, PollFlags::IN),
        ];
        fds.extend(self.interruption.iter().map(|signals| PollFd::new(signals, PollFlags::IN)));
        fds.extend(self.control.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(self.peer_monitor.fds());
        poll(&mut fds, self.status.is_some().then_some(HEARTBEAT_INTERVAL))
    }

    fn check_signals(&mut self) {
        if self.preemption.take() > 0 {
            self.shared.ask(Stop::Preempt);
            let now = clock();
            let first = *self.preempted.get_or_insert(now);
            // A parent would end a group that does not reach the end of a step.
            if self.control.is_none() && now >= first + MIN_SIGTERM_INTERVAL {
                self.shared.give_up();
            }
        }
        let interrupts = self.interruption.as_mut().map_or(0, Signals::take);
        for _ in 0..interrupts {
            match self.shared.stop() {
                Some(Stop::Abandon) => die(),
                Some(Stop::Interrupt) => self.shared.ask(Stop::Abandon),
                _ => self.shared.ask(Stop::Interrupt),
            }
        }
    }

    fn receive_from_parent(&mut self) {
        let Some(mut channel) = self.shared.channel() else { return };
        for message in channel.receive().unwrap_or_default() {
            match message {
                ToRank::Stop(stop) => self.shared.ask(stop),
                ToRank::GiveUp => self.shared.give_up(),
                ToRank::Plan(_) | ToRank::Peers(_) => {}
            }
        }
        if channel.is_closed() && !self.shared.is_ending.load(Ordering::Relaxed) {
            // The parent is gone: nothing would restart, stop or report this rank.
            die();
        }
        let _ = channel.flush();
    }

    fn check_peers(&mut self) {
        if let Some(why) = self.peer_monitor.check() {
            let _ = self.shared.lost.set(why);
            self.shared.end_group_if_lost();
        }
    }
}

/// Ends this process as the death of its parent does.
fn die() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
}
