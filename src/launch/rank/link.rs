//! A rank's line to whoever started it: where it is, what went wrong, and whether to stop.

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

use crate::failpoint;
use crate::files;
use crate::launch::Phase;
use crate::launch::error_report::{Blame, ErrorReport, FORMAT, chain, clock, host};
use crate::launch::messages::{FromRank, ToRank};
use crate::launch::parent::group::Stop;
use crate::launch::rank::parent_watchdog::Silence;
use crate::launch::rank::peer_monitor::PeerMonitor;
use crate::launch::rank::status::RankStatus;
use crate::launch::signals::Signals;
use crate::transport::channel::{Channel, poll};
use crate::units::Rank;

/// Longest time for last words to a parent that does not listen.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time after which a second SIGTERM means it. One signal may come twice at once: to all processes of a job, and through
/// the launcher.
const INSISTENCE: Duration = Duration::from_secs(5);
/// Time between two signs of life.
const BEAT: Duration = Duration::from_millis(500);

/// The line of one rank. Its thread ends with it.
pub struct Link {
    shared: Arc<Shared>,
    rank: Rank,
    logs: PathBuf,
    step: AtomicU64,
    phase: AtomicU8,
    /// How often this rank has moved.
    moves: AtomicU64,
    /// Where the parent looks; absent under a foreign launcher.
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
    voices: Mutex<Vec<Channel>>,
    /// What to do when waiting is in vain.
    give_up: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Why the group cannot go on, and what to do then.
    lost: OnceLock<String>,
    end_group: OnceLock<Box<EndGroup>>,
}

impl Link {
    /// Starts listening: to our parent through `channel` (Ctrl-C then reaches us through it), or to
    /// signals and `peer_monitor`. Reports are written into the folder `logs`. `status` is where to show oneself, and how long the
    /// parent may show nothing there: then this rank requests to save and leave.
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
        let (waker, sleeper) = UnixStream::pair()?;
        let control =
            channel.as_ref().map(|channel| channel.as_fd().try_clone_to_owned()).transpose()?;
        let (status, patience) = status.map(|(status, time)| (Arc::new(status), time)).unzip();
        if let Some(status) = &status {
            status.note_denials(rank)?;
        }
        let shared = Arc::new(Shared {
            stop: AtomicU8::new(0),
            is_ending: AtomicBool::new(false),
            channel: channel.map(Mutex::new),
            voices: Mutex::new(peer_monitor.voices()?),
            give_up: OnceLock::new(),
            lost: OnceLock::new(),
            end_group: OnceLock::new(),
        });
        let pulse = status.clone().map(|status| (status, rank));
        let silence = patience.map(|patience| Silence::new(patience, 2 * BEAT, clock()));
        let mut ears = Listener {
            shared: Arc::clone(&shared),
            preemption,
            preempted: None,
            interruption,
            sleeper,
            control,
            peer_monitor,
            pulse,
            beats: 0,
            silence,
        };
        let thread =
            std::thread::Builder::new().name("link".to_owned()).spawn(move || ears.listen())?;
        let (step, phase, moves) = (AtomicU64::new(0), AtomicU8::new(0), AtomicU64::new(0));
        let link = Self {
            shared,
            rank,
            logs,
            step,
            phase,
            moves,
            status,
            waker: Some(waker),
            thread: Some(thread),
        };
        link.progress(0, Phase::Joining);
        Ok(link)
    }

    /// Says where this rank is, in well under a microsecond; the parent knows it even if we are killed next.
    pub fn progress(&self, step: u64, phase: Phase) {
        self.step.store(step, Ordering::Relaxed);
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.write_place();
        failpoint::enter_step(step);
        failpoint::reach(phase.point());
    }

    /// Says that this rank is still where it was, and gets on.
    pub fn still_moving(&self) {
        self.write_place();
    }

    fn write_place(&self) {
        let moves = self.moves.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(status) = &self.status {
            let phase = Phase::from_number(self.phase.load(Ordering::Relaxed));
            status.write(self.rank, self.step.load(Ordering::Relaxed), phase, moves);
        }
    }

    /// Has `give_up` done on another thread when the parent says that waiting for other ranks is in vain, or, where
    /// there is no parent, a second SIGTERM does. Only the first call counts.
    pub fn when_told_to_give_up(&self, give_up: impl Fn() + Send + Sync + 'static) {
        let _ = self.shared.give_up.set(Box::new(give_up));
    }

    /// Has `end_group` done, with the reason, when another rank of a foreign launcher died or failed, also if it did so
    /// before this call. Only the first call counts.
    pub fn when_a_rank_is_lost(&self, end_group: impl Fn(&str) + Send + Sync + 'static) {
        let _ = self.shared.end_group.set(Box::new(end_group));
        self.shared.pass_on_loss();
    }

    /// The strongest request to stop so far, by the parent or by a signal to this process. Ranks may learn of it at
    /// different steps: they vote.
    pub fn stop_requested(&self) -> Option<Stop> {
        self.shared.stop()
    }

    /// An error of this rank, at its present place, with the messages of all its sources.
    pub fn describe(
        &self,
        error: &(dyn std::error::Error + 'static),
        exit_code: u8,
        blame: Blame,
    ) -> ErrorReport {
        let mut messages = chain(error).into_iter();
        let message = messages.next().unwrap_or_default();
        let mut report = self.describe_message(message, exit_code, blame);
        report.causes = messages.collect();
        report
    }

    /// As [`Link::describe`], for what is no error value: a panic.
    pub fn describe_message(&self, message: String, exit_code: u8, blame: Blame) -> ErrorReport {
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

    /// Tells the parent, and writes `rank-N.error.json`. The process then exits with `report.exit_code`.
    ///
    /// # Errors
    ///
    /// The file cannot be written; the parent was told before.
    pub fn report(&self, report: &ErrorReport) -> Result<(), files::Error> {
        self.say(&FromRank::Failed(Box::new(report.clone())));
        let text = serde_json::to_vec_pretty(report).unwrap_or_default();
        files::write_atomic(&self.logs.join(format!("rank-{}.error.json", self.rank)), &text)
    }

    /// Says that this rank has done all its work (also: has stopped as asked, and saved). Without it, an exit
    /// with code 0 is a failure.
    pub fn finish(&self) {
        self.say(&FromRank::Finished);
    }

    /// Says that a checkpoint is on disk. What a parent that is stopped does not take goes with the next words.
    pub fn saved(&self) {
        if let Some(mut channel) = self.shared.channel() {
            let _ = channel.send(&FromRank::Saved);
        }
    }

    fn say(&self, message: &FromRank) {
        if let Some(mut channel) = self.shared.channel() {
            // A parent that is gone, or does not listen, cannot be told; our exit tells the rest.
            let _ = channel.send_all(message, PATIENCE);
        }
        let mut voices = self.shared.voices.lock().unwrap_or_else(PoisonError::into_inner);
        for voice in &mut *voices {
            let _ = voice.send_all(message, PATIENCE);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Relaxed);
        drop(self.waker.take());
        if let Some(thread) = self.thread.take() {
            // It has nothing to say but that it panicked, which changes nothing any more.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A thread that panicked while it sent leaves at worst half a message, after which the parent reads no more.
    fn channel(&self) -> Option<MutexGuard<'_, Channel>> {
        self.channel.as_ref().map(|channel| channel.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The strongest request so far.
    fn stop(&self) -> Option<Stop> {
        match self.stop.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Stop::Resize),
            2 => Some(Stop::Unwatched),
            3 => Some(Stop::Preempt),
            4 => Some(Stop::Interrupt),
            _ => Some(Stop::Abandon),
        }
    }

    fn ask(&self, stop: Stop) {
        self.stop.fetch_max(stop as u8, Ordering::Relaxed);
    }

    fn give_up(&self) {
        self.give_up.get().into_iter().for_each(|give_up| give_up());
    }

    /// Ends the group of a rank that was lost, as soon as both are known.
    fn pass_on_loss(&self) {
        if let (Some(why), Some(end_group)) = (self.lost.get(), self.end_group.get()) {
            end_group(why);
        }
    }
}

/// What the link's thread owns.
struct Listener {
    shared: Arc<Shared>,
    preemption: Signals,
    /// When the first of them came.
    preempted: Option<Duration>,
    interruption: Option<Signals>,
    sleeper: UnixStream,
    /// The channel's socket once more, to wait for it without its lock.
    control: Option<OwnedFd>,
    peer_monitor: PeerMonitor,
    /// Where to show that this process lives.
    pulse: Option<(Arc<RankStatus>, Rank)>,
    beats: u64,
    /// Of the parent.
    silence: Option<Silence>,
}

impl Listener {
    fn listen(&mut self) {
        while !self.shared.is_ending.load(Ordering::Relaxed) {
            if self.wait().is_err() {
                return;
            }
            self.beat();
            self.look_after_parent();
            self.hear_signals();
            self.hear_parent();
            self.hear_fellows();
        }
    }

    fn beat(&mut self) {
        self.beats += 1;
        if let Some((status, rank)) = &self.pulse {
            status.beat(*rank, self.beats);
        }
    }

    /// A parent that is stopped would not notice if a rank hung or died, and nobody could stop us through it.
    fn look_after_parent(&mut self) {
        let (Some((status, _)), Some(silence)) = (&self.pulse, &mut self.silence) else { return };
        if silence.is_too_long(status.looks(), clock()) {
            self.shared.ask(Stop::Unwatched);
        }
    }

    fn wait(&self) -> io::Result<()> {
        let mut fds = vec![
            PollFd::new(&self.sleeper, PollFlags::IN),
            PollFd::new(&self.preemption, PollFlags::IN),
        ];
        fds.extend(self.interruption.iter().map(|signals| PollFd::new(signals, PollFlags::IN)));
        fds.extend(self.control.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        fds.extend(self.peer_monitor.fds());
        poll(&mut fds, self.pulse.is_some().then_some(BEAT))
    }

    fn hear_signals(&mut self) {
        if self.preemption.take() > 0 {
            self.shared.ask(Stop::Preempt);
            let now = clock();
            let first = *self.preempted.get_or_insert(now);
            // A parent would end a group that does not come to the edge of a step.
            if self.control.is_none() && now >= first + INSISTENCE {
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

    fn hear_parent(&mut self) {
        let Some(mut channel) = self.shared.channel() else { return };
        for message in channel.receive().unwrap_or_default() {
            match message {
                ToRank::Stop(stop) => self.shared.ask(stop),
                ToRank::GiveUp => self.shared.give_up(),
                ToRank::Plan(_) | ToRank::Peers(_) => {}
            }
        }
        if channel.is_closed() && !self.shared.is_ending.load(Ordering::Relaxed) {
            // The parent is gone: nobody would restart, stop or name us.
            die();
        }
        let _ = channel.flush();
    }

    fn hear_fellows(&mut self) {
        if let Some(why) = self.peer_monitor.hear() {
            let _ = self.shared.lost.set(why);
            self.shared.pass_on_loss();
        }
    }
}

/// Ends this process as the death of its parent does.
fn die() {
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
}
