//! One message to each other rank and one from each, at once: whoever can send sends, whoever can receive receives.
//!
//! A header says what its sender came for, and is compared before any of the payload is taken. MACs (`launch::seal`)
//! are there between machines only. A message that ends the group takes the place of any other.

use std::io;
#[cfg(any(feature = "cuda", test))]
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::Shutdown;
use rustix::time::Timespec;

use crate::collective::message::{Incoming, Outgoing, Target};
use crate::collective::{Call, Error, Missing};
use crate::transport::auth::MessageAuth;
use crate::transport::{Peer, Waker};
use crate::units::Rank;

/// Longest sleep between two looks.
const NAP: Duration = Duration::from_secs(1);

/// What another thread of this rank wants of one that waits.
pub(super) struct Calls {
    waker: Waker,
    gives_up: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Calls {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            waker: Waker::new()?,
            gives_up: AtomicBool::new(false),
            reason: Mutex::new(None),
        })
    }

    /// To wait no longer.
    pub(super) fn give_up(&self) {
        self.gives_up.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    /// To end the group. The first reason stays.
    pub(super) fn abort(&self, reason: &str) {
        let mut first = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| reason.to_owned());
        self.waker.wake();
    }

    /// Whether to wait no longer.
    pub(super) fn gives_up(&self) -> bool {
        self.gives_up.load(Ordering::SeqCst)
    }

    /// Why to end the group, if so.
    pub(super) fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The way to another rank.
pub(super) struct Line {
    pub(super) rank: Rank,
    address: String,
    socket: OwnedFd,
    send: Option<MessageAuth>,
    receive: Option<MessageAuth>,
    /// Whether the last message to it was sent to its end.
    is_between: bool,
}

impl Line {
    pub(super) fn open(peer: Peer) -> io::Result<Self> {
        let Peer { rank, address, socket, keys } = peer;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let seals = keys.map(|keys| (MessageAuth::new(keys.send), MessageAuth::new(keys.receive)));
        let (send, receive) = seals.unzip();
        Ok(Self { rank, address, socket, send, receive, is_between: true })
    }

    fn gone(&self, call: &Call, why: &io::Error) -> Error {
        let (rank, address) = (self.rank, self.address.clone());
        Error::Gone { rank, address, call: *call, why: why.to_string() }
    }

    /// Tells the other rank that the group has ended, if there is room for it between two messages.
    fn end(&mut self, by: Rank, reason: &str) {
        if self.is_between {
            let mut message = Outgoing::of_end(by, reason);
            // What cannot be said now is seen when this process is gone.
            let _ = message.push(&self.socket, self.send.as_mut());
            self.is_between = false;
        }
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }
}

/// Sends `out[i]` to the other end of line i and receives from it into `into[i]`, for a call in its `round`-th exchange.
/// A rank that does not move at all for `timeout` is missing.
///
/// # Errors
///
/// A rank is gone, late, ended the group, or makes another call. The lines are then of no further use, and the other
/// ranks have been told as far as possible.
pub(super) fn exchange(
    lines: &mut [Line],
    (me, call, round): (Rank, &Call, u64),
    out: &[&[u8]],
    into: Vec<Target<'_>>,
    (calls, timeout): (&Calls, Duration),
) -> Result<(), Error> {
    let mut talks: Vec<Talk> = lines
        .iter_mut()
        .zip(out.iter().zip(into))
        .map(|(line, (payload, target))| Talk {
            line,
            out: Outgoing::of_call(call, round, payload),
            into: Incoming::new(target),
        })
        .collect();
    let ended = talk(&mut talks, (me, call, round), calls, timeout);
    for talk in &mut talks {
        talk.line.is_between = talk.out.is_done() || talk.out.is_untouched();
    }
    drop(talks);
    ended.inspect_err(|error| end_all(lines, me, error))
}

/// Tells all ranks why the group has ended.
pub(super) fn end_all(lines: &mut [Line], me: Rank, error: &Error) {
    let (by, reason) = match error {
        Error::Aborted { by, reason } => (*by, reason.clone()),
        other => (me, other.to_string()),
    };
    for line in lines {
        line.end(by, &reason);
    }
}

/// Why the group has ended, as far as the lines tell between two calls: a rank that says so, or is gone. What a rank says that is
/// ahead, in its next call, stays where it is. Waits for nobody.
#[cfg(any(feature = "cuda", test))]
pub(super) fn heard_end(lines: &mut [Line], call: &Call) -> Option<Error> {
    let mut fds: Vec<_> = lines.iter().map(|l| PollFd::new(&l.socket, PollFlags::IN)).collect();
    // What cannot be asked now is asked at the next look.
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).ok()?;
    let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
    drop(fds);
    let mut ready = lines.iter_mut().zip(ready).filter_map(|(line, ready)| ready.then_some(line));
    ready.find_map(|line| match Incoming::begins_with_end(&line.socket) {
        Ok(false) => None,
        Ok(true) => {
            let mut words = Incoming::new(Target::Slice(&mut []));
            let mut pulled = Ok(true);
            while words.may_be_end() && matches!(pulled, Ok(true)) {
                pulled = words.pull(&line.socket, line.receive.as_mut());
            }
            let broken = pulled.err().unwrap_or_else(|| ErrorKind::UnexpectedEof.into());
            Some(words.end().unwrap_or_else(|| line.gone(call, &broken)))
        }
        Err(why) => Some(line.gone(call, &why)),
    })
}

/// Both directions of a line.
struct Talk<'a> {
    line: &'a mut Line,
    out: Outgoing<'a>,
    into: Incoming<'a>,
}

impl Talk<'_> {
    /// Sends and receives what can be now, and says whether anything was.
    fn go_on(&mut self, me: Rank, call: &Call, round: u64) -> Result<bool, Error> {
        let Line { socket, send, receive, .. } = &mut *self.line;
        // First what was said: its end may have been told before it went.
        let heard = self.into.pull(socket, receive.as_mut());
        let told = self.out.push(socket, send.as_mut());
        let heard = heard.map_err(|why| self.line.gone(call, &why))?;
        self.into.check(me, self.line.rank, call, round)?;
        match told {
            Ok(told) => Ok(heard || told),
            Err(why) => {
                let said = self.last_words(me, call, round);
                Err(said.unwrap_or_else(|| self.line.gone(call, &why)))
            }
        }
    }

    /// Why a rank that takes nothing more has gone, if it said so: in place of what it was to say, or after it.
    fn last_words(&mut self, me: Rank, call: &Call, round: u64) -> Option<Error> {
        let Self { line: Line { socket, receive, rank, .. }, into, .. } = self;
        let mut pull =
            |words: &mut Incoming<'_>| words.pull(socket, receive.as_mut()).unwrap_or(false);
        while !into.is_done() && into.check(me, *rank, call, round).is_ok() && pull(into) {}
        if !into.is_done() {
            return into.end();
        }
        let mut after = Incoming::new(Target::Slice(&mut []));
        while after.may_be_end() && pull(&mut after) {}
        after.end()
    }

    fn is_done(&self) -> bool {
        self.out.is_done() && self.into.is_done()
    }
}

/// Talks until all is said.
fn talk(
    talks: &mut [Talk<'_>],
    (me, call, round): (Rank, &Call, u64),
    calls: &Calls,
    timeout: Duration,
) -> Result<(), Error> {
    let mut waited = Duration::ZERO;
    loop {
        if let Some(reason) = calls.reason() {
            return Err(Error::Aborted { by: me, reason });
        }
        let mut has_moved = false;
        for talk in talks.iter_mut().filter(|talk| !talk.is_done()) {
            has_moved |= talk.go_on(me, call, round)?;
        }
        if talks.iter().all(Talk::is_done) {
            return Ok(());
        }
        if has_moved {
            waited = Duration::ZERO;
        } else if waited >= timeout || calls.gives_up() {
            return Err(Error::Timeout { call: *call, missing: missing(talks, call), waited });
        } else {
            waited += sleep(talks, &calls.waker, timeout.saturating_sub(waited));
        }
    }
}

/// Those from whom, or to whom, something is left to be said.
fn missing(talks: &[Talk<'_>], call: &Call) -> Vec<Missing> {
    let silent: Vec<&Talk<'_>> = talks.iter().filter(|talk| !talk.into.has_begun()).collect();
    let begun = |talk: &Talk<'_>| if talk.into.has_begun() { call.seq } else { call.seq - 1 };
    let missing = |talk: &Talk<'_>| Missing { rank: talk.line.rank, begun: begun(talk) };
    if silent.is_empty() {
        talks.iter().filter(|talk| !talk.is_done()).map(missing).collect()
    } else {
        silent.into_iter().map(missing).collect()
    }
}

/// Sleeps until a line moves or somebody calls, at most for `time`, and says how long. While the whole group stands
/// still (Ctrl-Z), so does the deadline: a nap counts no longer than it was meant to be.
fn sleep(talks: &[Talk<'_>], waker: &Waker, time: Duration) -> Duration {
    let nap = time.min(NAP);
    let mut fds = vec![PollFd::new(waker, PollFlags::IN)];
    for talk in talks {
        let out = if talk.out.is_done() { PollFlags::empty() } else { PollFlags::OUT };
        let into = if talk.into.is_done() { PollFlags::empty() } else { PollFlags::IN };
        if !talk.is_done() {
            fds.push(PollFd::new(&talk.line.socket, out | into));
        }
    }
    let nap_time = Timespec { tv_sec: nap.as_secs() as i64, tv_nsec: nap.subsec_nanos().into() };
    let began = Instant::now();
    // Any return, also by a signal, only means to look again.
    let _ = rustix::event::poll(&mut fds, Some(&nap_time));
    waker.take();
    began.elapsed().min(nap)
}
