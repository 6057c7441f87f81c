//! One message to each other rank and one from each, in both directions of all connections at once.
//!
//! A header says which call its sender makes, and is compared before any of the payload is read.
//! Only messages between machines are sealed. A message that ends the group may come in place of
//! any other.

use std::io;
#[cfg(any(feature = "cuda", test))]
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::Shutdown;
use rustix::time::Timespec;

use crate::collective::links::{Exchange, Links, Message};
use crate::collective::message::{Incoming, Outgoing, Sealer, Target};
use crate::collective::{Call, Error, MissingRank};
use crate::transport::record::{RecordKey, SessionKeys};
use crate::transport::{Peer, Waker};
use crate::units::Rank;

/// Longest sleep between two checks.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// Longest sleep of a leader, whose machine wants to hear that it is alive.
const MAX_SLEEP_OF_LEADER: Duration = Duration::from_millis(50);

/// The connection to another rank.
pub(super) struct Connection {
    pub(super) rank: Rank,
    address: String,
    socket: OwnedFd,
    /// Absent within a machine.
    send: Option<Sealer>,
    receive: Option<RecordKey>,
    /// True if the last message to it was sent completely.
    is_at_boundary: bool,
}

impl Connection {
    pub(super) fn open(peer: Peer) -> io::Result<Self> {
        let Peer { rank, address, socket, keys } = peer;
        rustix::io::ioctl_fionbio(&socket, true)?;
        let keys = keys.map(SessionKeys::open).transpose()?;
        let (send, receive) = keys.map(|[send, receive]| (Sealer::new(send), receive)).unzip();
        Ok(Self { rank, address, socket, send, receive, is_at_boundary: true })
    }

    fn gone(&self, call: &Call, why: &io::Error) -> Error {
        let rank = self.rank;
        let address = self.address.clone();
        Error::Gone { rank, address, call: *call, why: why.to_string() }
    }

    #[cfg(any(feature = "cuda", test))]
    fn begins_with_end(&self) -> io::Result<bool> {
        Incoming::begins_with_end(&self.socket, self.receive.as_ref())
    }

    /// Tells the other rank that the group has ended, if no message is half sent.
    fn end(&mut self, by: Rank, reason: &str) {
        if self.is_at_boundary {
            let mut message = Outgoing::of_end(by, reason);
            // If it cannot be sent now, the other rank notices when this process is gone.
            let _ = message.push(&self.socket, self.send.as_mut());
            self.is_at_boundary = false;
        }
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }
}

impl Links for Vec<Connection> {
    fn exchange(
        &mut self,
        exchange: &Exchange<'_>,
        messages: Vec<Message<'_>>,
    ) -> Result<(), Error> {
        let mut messages = messages.into_iter().peekable();
        let mut transfers: Vec<Transfer<'_>> = self
            .iter_mut()
            .enumerate()
            .filter_map(|(peer, connection)| {
                let Message { out, into, .. } = messages.next_if(|next| next.peer == peer)?;
                let out = out.map(|out| Outgoing::of_call(exchange.call, exchange.round, out));
                Some(Transfer { connection, out, into: into.map(Incoming::new) })
            })
            .collect();
        let done = complete(exchange, &mut transfers);
        for Transfer { connection, out, .. } in &mut transfers {
            let whole = |out: &Outgoing<'_>| out.is_done() || out.is_untouched();
            connection.is_at_boundary = out.as_ref().is_none_or(whole);
        }
        drop(transfers);
        done.inspect_err(|error| self.end_all(exchange.rank, error))
    }

    fn end_all(&mut self, rank: Rank, error: &Error) {
        let (by, reason) = error.abort_reason(rank);
        for connection in self {
            connection.end(by, &reason);
        }
    }

    #[cfg(any(feature = "cuda", test))]
    fn received_end(&mut self, call: &Call) -> Option<Error> {
        let mut fds: Vec<_> = self.iter().map(|c| PollFd::new(&c.socket, PollFlags::IN)).collect();
        // If polling fails, the next check polls again.
        rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).ok()?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut ready = self.iter_mut().zip(ready).filter(|(_, ready)| *ready);
        ready.find_map(|(connection, _)| match connection.begins_with_end() {
            Ok(false) => None,
            Ok(true) => {
                let mut end = Incoming::new(Target::Slice(&mut []));
                let mut pulled = Ok(true);
                while end.may_be_end() && matches!(pulled, Ok(true)) {
                    pulled = end.pull(&connection.socket, connection.receive.as_mut());
                }
                let broken = pulled.err().unwrap_or_else(|| ErrorKind::UnexpectedEof.into());
                Some(end.end().unwrap_or_else(|| connection.gone(call, &broken)))
            }
            Err(why) => Some(connection.gone(call, &why)),
        })
    }
}

/// The directions of a connection that are in use.
struct Transfer<'a> {
    connection: &'a mut Connection,
    out: Option<Outgoing<'a>>,
    into: Option<Incoming<'a>>,
}

impl Transfer<'_> {
    /// Sends and receives what is possible now, and returns whether anything was.
    fn advance(&mut self, exchange: &Exchange<'_>) -> Result<bool, Error> {
        let Exchange { rank, call, round, .. } = *exchange;
        let Connection { socket, send, receive, .. } = &mut *self.connection;
        // Reads first: the other rank may have sent why it has gone.
        let pull = |into: &mut Incoming<'_>| into.pull(socket, receive.as_mut());
        let received = self.into.as_mut().map_or(Ok(false), pull);
        let push = |out: &mut Outgoing<'_>| out.push(socket, send.as_mut());
        let sent = self.out.as_mut().map_or(Ok(false), push);
        let received = received.map_err(|why| self.connection.gone(call, &why))?;
        if let Some(into) = &self.into {
            into.check(rank, self.connection.rank, call, round)?;
        }
        match sent {
            Ok(sent) => Ok(received || sent),
            Err(why) => {
                let reason = self.pending_end(exchange);
                Err(reason.unwrap_or_else(|| self.connection.gone(call, &why)))
            }
        }
    }

    /// Returns the reason of a rank that reads nothing more, if it sent one: in place of its
    /// message, or after it.
    fn pending_end(&mut self, exchange: &Exchange<'_>) -> Option<Error> {
        let Exchange { rank: own, call, round, .. } = *exchange;
        let Self { connection: Connection { socket, receive, rank, .. }, into, .. } = self;
        let mut pull =
            |message: &mut Incoming<'_>| message.pull(socket, receive.as_mut()).unwrap_or(false);
        if let Some(into) = into {
            while !into.is_done() && into.check(own, *rank, call, round).is_ok() && pull(into) {}
            if !into.is_done() {
                return into.end();
            }
        }
        let mut after = Incoming::new(Target::Slice(&mut []));
        while after.may_be_end() && pull(&mut after) {}
        after.end()
    }

    fn is_done(&self) -> bool {
        self.is_sent() && self.is_received()
    }

    fn is_sent(&self) -> bool {
        self.out.as_ref().is_none_or(Outgoing::is_done)
    }

    fn is_received(&self) -> bool {
        self.into.as_ref().is_none_or(Incoming::is_done)
    }

    /// True if the other end has yet to send its message, and nothing of it has come.
    fn is_silent(&self) -> bool {
        self.into.as_ref().is_some_and(|into| !into.has_begun())
    }
}

/// Sends and receives until all transfers are done.
fn complete(exchange: &Exchange<'_>, transfers: &mut [Transfer<'_>]) -> Result<(), Error> {
    let Exchange { rank, call, interrupts, timeout, wait_hook, .. } = *exchange;
    let mut waited = Duration::ZERO;
    loop {
        wait_hook.map_or(Ok(()), |wait_hook| wait_hook())?;
        if let Some(reason) = interrupts.reason() {
            return Err(Error::Aborted { by: rank, reason });
        }
        let mut has_advanced = false;
        for transfer in transfers.iter_mut().filter(|transfer| !transfer.is_done()) {
            has_advanced |= transfer.advance(exchange)?;
        }
        if transfers.iter().all(Transfer::is_done) {
            return Ok(());
        }
        if has_advanced {
            waited = Duration::ZERO;
        } else if waited >= timeout || interrupts.gives_up() {
            return Err(Error::Timeout { call: *call, missing: missing(transfers, call), waited });
        } else {
            let longest = wait_hook.map_or(MAX_SLEEP, |_| MAX_SLEEP_OF_LEADER);
            let time = timeout.saturating_sub(waited).min(longest);
            waited += sleep(transfers, &interrupts.waker, time);
        }
    }
}

/// The ranks whose transfers are not done; if some have sent nothing at all, only those.
fn missing(transfers: &[Transfer<'_>], call: &Call) -> Vec<MissingRank> {
    let silent: Vec<&Transfer<'_>> =
        transfers.iter().filter(|transfer| transfer.is_silent()).collect();
    let missing = |transfer: &Transfer<'_>| {
        let begun = if transfer.is_silent() { call.seq - 1 } else { call.seq };
        MissingRank { rank: transfer.connection.rank, begun }
    };
    if silent.is_empty() {
        transfers.iter().filter(|transfer| !transfer.is_done()).map(missing).collect()
    } else {
        silent.into_iter().map(missing).collect()
    }
}

/// Sleeps until a transfer can advance or there is an interrupt, at most for `time`, and returns
/// how long. No sleep counts for longer than it was meant to be: while the whole group is suspended
/// (Ctrl-Z), so is the deadline.
fn sleep(transfers: &[Transfer<'_>], waker: &Waker, time: Duration) -> Duration {
    let mut fds = vec![PollFd::new(waker, PollFlags::IN)];
    for transfer in transfers {
        let out = if transfer.is_sent() { PollFlags::empty() } else { PollFlags::OUT };
        let into = if transfer.is_received() { PollFlags::empty() } else { PollFlags::IN };
        if !transfer.is_done() {
            fds.push(PollFd::new(&transfer.connection.socket, out | into));
        }
    }
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
    let began = Instant::now();
    // Whatever the result, the caller checks again.
    let _ = rustix::event::poll(&mut fds, Some(&timeout));
    waker.take();
    began.elapsed().min(time)
}
