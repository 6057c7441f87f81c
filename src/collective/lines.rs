//! One message to each other rank and one from each, at once: whoever can send sends, whoever can receive receives.
//!
//! ```text
//! header: operation, round, call, length, tag, payload's length   48 bytes  MAC
//! payload, in pieces of 256 KiB, each                                       MAC
//! ```
//!
//! A header says what its sender came for, and is compared before any of the payload is taken. MACs (`launch::seal`)
//! are there between machines only. A message that ends the group takes the place of any other.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{SendFlags, Shutdown};
use rustix::time::Timespec;

use crate::collective::{Call, Error, Missing, Op};
use crate::launch::seal::{Seal, TAG};
use crate::launch::{Bell, Peer};
use crate::units::{Bytes, Rank};

/// Bytes of a header.
const HEADER: usize = 48;
/// Payload under one MAC: what is changed on the way is noticed before more of it is taken.
const PIECE: usize = 256 << 10;
/// Operation of a message that ends the group.
const END: u64 = 0xE0D;
/// Longest reason for an end that is taken.
const REASON: usize = 16 << 10;
/// Longest sleep between two looks.
const NAP: Duration = Duration::from_secs(1);

/// What another thread of this rank wants of one that waits.
pub(super) struct Calls {
    bell: Bell,
    gives_up: AtomicBool,
    reason: Mutex<Option<String>>,
}

impl Calls {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { bell: Bell::new()?, gives_up: AtomicBool::new(false), reason: Mutex::new(None) })
    }

    /// To wait no longer.
    pub(super) fn give_up(&self) {
        self.gives_up.store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    /// To end the group. The first reason stays.
    pub(super) fn abort(&self, reason: &str) {
        let mut first = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| reason.to_owned());
        self.bell.ring();
    }

    fn reason(&self) -> Option<String> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The way to another rank.
pub(super) struct Line {
    pub(super) rank: Rank,
    address: String,
    socket: OwnedFd,
    send: Option<Seal>,
    receive: Option<Seal>,
    /// Whether the last message to it was sent to its end.
    is_between: bool,
}

impl Line {
    pub(super) fn open(peer: Peer) -> io::Result<Self> {
        let Peer { rank, address, socket, session } = peer;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let seals = session.map(|keys| (Seal::new(keys.send), Seal::new(keys.receive)));
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
            let reason = &reason.as_bytes()[..reason.floor_char_boundary(REASON)];
            let fields = [END, 0, 0, 0, u64::from(by.0), reason.len() as u64];
            let mut message = Outgoing::new(header(fields), reason);
            // What cannot be said now is seen when this process is gone.
            let _ = message.push(self.socket.as_fd(), self.send.as_mut());
            self.is_between = false;
        }
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }
}

/// Where a payload goes.
pub(super) enum Target<'a> {
    /// Its length is known.
    Slice(&'a mut [u8]),
    /// Its sender decides.
    Vec(&'a mut Vec<u8>),
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
    let message = |payload: &[u8]| {
        let Call { seq, op, bytes, tag } = *call;
        header([op.code(), round, seq, bytes.0, tag, payload.len() as u64])
    };
    let mut talks: Vec<Talk> = lines
        .iter_mut()
        .zip(out.iter().zip(into))
        .map(|(line, (payload, target))| Talk {
            line,
            out: Outgoing::new(message(payload), payload),
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
        let told = self.out.push(socket.as_fd(), send.as_mut());
        let heard = heard.map_err(|why| self.line.gone(call, &why))?;
        self.into.check(me, self.line.rank, call, round)?;
        match told {
            Ok(told) => Ok(heard || told),
            Err(why) => {
                // It may have said why before it went.
                let Line { socket, receive, .. } = &mut *self.line;
                let _ = self.into.pull(socket, receive.as_mut());
                self.into.check(me, self.line.rank, call, round)?;
                Err(self.line.gone(call, &why))
            }
        }
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
        } else if waited >= timeout || calls.gives_up.load(Ordering::SeqCst) {
            return Err(Error::Timeout { call: *call, missing: missing(talks, call), waited });
        } else {
            waited += sleep(talks, &calls.bell, timeout.saturating_sub(waited));
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
fn sleep(talks: &[Talk<'_>], bell: &Bell, time: Duration) -> Duration {
    let nap = time.min(NAP);
    let mut fds = vec![PollFd::new(bell, PollFlags::IN)];
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
    bell.take();
    began.elapsed().min(nap)
}

fn header(fields: [u64; 6]) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    for (at, field) in fields.into_iter().enumerate() {
        bytes[8 * at..8 * at + 8].copy_from_slice(&field.to_le_bytes());
    }
    bytes
}

fn fields(header: &[u8; HEADER]) -> [u64; 6] {
    std::array::from_fn(|at| {
        header[8 * at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    })
}

/// The `part`-th part of a message beside its header, counted from 1.
fn piece(part: usize, len: usize) -> std::ops::Range<usize> {
    ((part - 1) * PIECE).min(len)..(part * PIECE).min(len)
}

fn parts(len: usize) -> usize {
    1 + len.div_ceil(PIECE)
}

/// A message on its way out.
struct Outgoing<'a> {
    header: [u8; HEADER],
    payload: &'a [u8],
    /// The part at hand; 0 is the header.
    part: usize,
    /// Bytes of it, and of its MAC, that are sent.
    sent: usize,
    tag: Option<[u8; TAG]>,
}

impl<'a> Outgoing<'a> {
    fn new(header: [u8; HEADER], payload: &'a [u8]) -> Self {
        Self { header, payload, part: 0, sent: 0, tag: None }
    }

    fn is_done(&self) -> bool {
        self.part == parts(self.payload.len())
    }

    fn is_untouched(&self) -> bool {
        self.part == 0 && self.sent == 0 && self.tag.is_none()
    }

    /// Sends what can be sent now, and says whether anything was.
    fn push(
        &mut self,
        socket: std::os::fd::BorrowedFd<'_>,
        mut seal: Option<&mut Seal>,
    ) -> io::Result<bool> {
        let mut has_moved = false;
        while !self.is_done() {
            let part = match self.part {
                0 => &self.header[..],
                part => &self.payload[piece(part, self.payload.len())],
            };
            if self.tag.is_none() {
                self.tag = seal.as_deref_mut().map(|seal| seal.tag(part));
            }
            let tag = self.tag.as_ref().map_or(&[][..], |tag| &tag[..]);
            let (rest, is_last) = match self.sent.checked_sub(part.len()) {
                None => (&part[self.sent..], tag.is_empty()),
                Some(of_tag) => (&tag[of_tag..], true),
            };
            let is_last = is_last && self.part + 1 == parts(self.payload.len());
            let more = if is_last { SendFlags::empty() } else { SendFlags::MORE };
            match rustix::net::send(socket, rest, SendFlags::NOSIGNAL | more) {
                Ok(n) => self.sent += n,
                Err(rustix::io::Errno::AGAIN) => return Ok(has_moved),
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            has_moved = true;
            if self.sent == part.len() + tag.len() {
                (self.part, self.sent, self.tag) = (self.part + 1, 0, None);
            }
        }
        Ok(has_moved)
    }
}

/// A message on its way in.
struct Incoming<'a> {
    header: [u8; HEADER],
    target: Target<'a>,
    /// In place of the target, for a message that ends the group.
    reason: Vec<u8>,
    /// The part at hand; 0 is the header.
    part: usize,
    /// Bytes of it, and of its MAC, that are here.
    here: usize,
    tag: [u8; TAG],
}

impl<'a> Incoming<'a> {
    fn new(target: Target<'a>) -> Self {
        let (header, reason, tag) = ([0; HEADER], Vec::new(), [0; TAG]);
        Self { header, target, reason, part: 0, here: 0, tag }
    }

    fn has_begun(&self) -> bool {
        self.part > 0
    }

    /// Bytes of the payload, once the header is here.
    fn len(&self) -> usize {
        fields(&self.header)[5] as usize
    }

    fn is_end(&self) -> bool {
        fields(&self.header)[0] == END
    }

    fn is_done(&self) -> bool {
        self.has_begun() && !self.is_end() && self.part == parts(self.len())
    }

    /// Receives what is here, up to the header if that is what is missing, and says whether anything was.
    fn pull(&mut self, socket: &OwnedFd, mut seal: Option<&mut Seal>) -> io::Result<bool> {
        let had_begun = self.has_begun();
        let mut has_moved = false;
        loop {
            if self.has_begun() && (!had_begun || self.part == parts(self.len())) {
                return Ok(has_moved);
            }
            let tag_len = if seal.is_some() { TAG } else { 0 };
            let (here, mut tag) = (self.here, self.tag);
            let part = self.at_hand();
            let len = part.len();
            let rest = match here.checked_sub(len) {
                None => &mut part[here..],
                Some(of_tag) => &mut tag[of_tag..tag_len],
            };
            let is_missing = !rest.is_empty();
            match rustix::io::read(socket, rest) {
                Ok(0) if is_missing => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.here += n,
                Err(rustix::io::Errno::AGAIN) => return Ok(has_moved),
                Err(rustix::io::Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            has_moved = true;
            self.tag = tag;
            if self.here == len + tag_len {
                let part = self.at_hand();
                if seal.as_deref_mut().is_some_and(|seal| !seal.holds(part, &tag)) {
                    let text = "what came was changed, repeated or put in on its way";
                    return Err(io::Error::new(ErrorKind::InvalidData, text));
                }
                (self.part, self.here) = (self.part + 1, 0);
            }
        }
    }

    /// The part at hand, to be filled.
    fn at_hand(&mut self) -> &mut [u8] {
        if self.part == 0 {
            return &mut self.header;
        }
        let range = piece(self.part, self.len());
        let is_end = self.is_end();
        match &mut self.target {
            Target::Slice(bytes) if !is_end => &mut bytes[range],
            Target::Vec(bytes) if !is_end => {
                bytes.resize(range.end, 0);
                &mut bytes[range]
            }
            _ => {
                self.reason.resize(range.end, 0);
                &mut self.reason[range]
            }
        }
    }

    /// Once the header is here: whether the other rank came for the same.
    fn check(&self, me: Rank, other: Rank, call: &Call, round: u64) -> Result<(), Error> {
        if !self.has_begun() {
            return Ok(());
        }
        let [op, its_round, seq, bytes, tag, len] = fields(&self.header);
        if op == END {
            let too_long = len as usize > REASON;
            if too_long || self.part == parts(len as usize) {
                let reason = String::from_utf8_lossy(&self.reason).into_owned();
                return Err(Error::Aborted { by: Rank(tag as u32), reason });
            }
            return Ok(());
        }
        let op = Op::of_code(op)
            .ok_or_else(|| Error::Lines { what: format!("rank {other} sends what is no call") })?;
        let theirs = Call { seq, op, bytes: Bytes(bytes), tag };
        if theirs != *call || its_round != round {
            let (mut first, mut second) = ((me, *call), (other, theirs));
            if other < me {
                (first, second) = (second, first);
            }
            return Err(Error::Mismatch { first, second });
        }
        match &self.target {
            Target::Slice(slice) if slice.len() != len as usize => Err(Error::Lines {
                what: format!("rank {other} sends {len} bytes in {call}, not {}", slice.len()),
            }),
            _ => Ok(()),
        }
    }
}
