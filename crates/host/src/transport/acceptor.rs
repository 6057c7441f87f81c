//! A listening socket -> the connections that proved that they hold the key.
//!
//! A connection that does not is cheap and blocks no other: it has a thread of its own for at most
//! five seconds and 96 bytes. At most 64 are authenticated at a time, 16 of them from one address,
//! and at most one refusal a second is reported for an address.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use crate::transport::auth::{Key, Purpose};
use crate::transport::channel::poll;
use crate::transport::handshake::respond;
use crate::transport::record::SessionKeys;

/// Connections that are authenticated at a time.
const MAX_PENDING: usize = 64;
/// Connections from one address that are authenticated at a time.
const MAX_PENDING_PER_ADDRESS: usize = 16;
/// Time between two reports of refusals for one address.
const REFUSAL_REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Addresses whose last refusal is remembered.
const MAX_REMEMBERED_ADDRESSES: usize = 1024;
/// Pause after a failed `accept`.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// A connection whose other end proved that it holds the key.
pub struct AuthenticatedConnection {
    pub stream: TcpStream,
    pub address: IpAddr,
    pub purpose: Purpose,
    pub keys: SessionKeys,
}

/// Result of a handshake.
enum Outcome {
    Accepted(Box<AuthenticatedConnection>),
    Refused(IpAddr, &'static str),
}

/// Authenticates incoming connections on threads of its own until it is dropped. A connection that
/// has not been accepted by then stays in the system's queue for the next acceptor.
pub struct Acceptor {
    outcomes: Receiver<Outcome>,
    last_refusals: BTreeMap<IpAddr, Instant>,
    /// Ends the thread when it is closed.
    _stop: UnixStream,
}

impl Acceptor {
    pub fn open(listener: &TcpListener, key: &Key) -> io::Result<Self> {
        let listener = listener.try_clone()?;
        listener.set_nonblocking(true)?;
        let (stop, stopped) = UnixStream::pair()?;
        let (sender, outcomes) = sync_channel(MAX_PENDING);
        let key = key.clone();
        std::thread::Builder::new()
            .name("acceptor".to_owned())
            .spawn(move || accept_loop(&listener, &stopped, &key, &sender))?;
        Ok(Self { outcomes, last_refusals: BTreeMap::new(), _stop: stop })
    }

    /// The next authenticated connection, or `None` if there is none before `until`. Refusals are
    /// reported through `warn`.
    pub fn accept(
        &mut self,
        until: Instant,
        warn: &mut dyn FnMut(&str),
    ) -> Option<AuthenticatedConnection> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.outcomes.recv_timeout(left) {
                Ok(Outcome::Accepted(connection)) => return Some(*connection),
                Ok(Outcome::Refused(address, why)) if self.should_report(address) => {
                    warn(&format!("warning: a connection from {address} was refused: {why}"));
                }
                Ok(Outcome::Refused(..)) => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn should_report(&mut self, address: IpAddr) -> bool {
        let now = Instant::now();
        let is_recent = |at: &Instant| now.duration_since(*at) < REFUSAL_REPORT_INTERVAL;
        if self.last_refusals.len() >= MAX_REMEMBERED_ADDRESSES {
            self.last_refusals.retain(|_, at| is_recent(at));
        }
        let should_report = !self.last_refusals.get(&address).is_some_and(is_recent);
        if should_report && self.last_refusals.len() < MAX_REMEMBERED_ADDRESSES {
            self.last_refusals.insert(address, now);
        }
        should_report
    }
}

/// Accepts until the other end of `stopped` is closed.
fn accept_loop(
    listener: &TcpListener,
    stopped: &UnixStream,
    key: &Key,
    outcomes: &SyncSender<Outcome>,
) {
    let pending = Arc::new(Pending::default());
    loop {
        let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        if poll(&mut fds, None).is_err() || !fds[1].revents().is_empty() {
            return;
        }
        // The client may have left again. Without free descriptors it waits in the system's queue
        // until we try again.
        let Ok((stream, address)) = listener.accept() else {
            let mut fds = [PollFd::new(stopped, PollFlags::IN)];
            let _ = poll(&mut fds, Some(ACCEPT_RETRY_INTERVAL));
            continue;
        };
        let address = address.ip();
        let Some(slot) = Pending::reserve(&pending, address) else {
            let why = "too many connections are being authenticated";
            let _ = outcomes.try_send(Outcome::Refused(address, why));
            continue;
        };
        let key = key.clone();
        let outcomes = outcomes.clone();
        // Without a thread the connection is closed, and its opener tries again.
        let _ = std::thread::Builder::new()
            .name("handshake".to_owned())
            .spawn(move || authenticate(stream, slot, &key, &outcomes));
    }
}

fn authenticate(
    mut stream: TcpStream,
    slot: PendingSlot,
    key: &Key,
    outcomes: &SyncSender<Outcome>,
) {
    let address = slot.address;
    let readable = stream.set_nonblocking(false).map_err(|_| "the system refuses to read from it");
    match readable.and_then(|()| respond(&mut stream, key)) {
        Ok((purpose, keys)) => {
            let connection = AuthenticatedConnection { stream, address, purpose, keys };
            // An error means that the acceptor is closed.
            let _ = outcomes.send(Outcome::Accepted(Box::new(connection)));
        }
        // A report for which the queue has no room is one of very many.
        Err(why) => drop(outcomes.try_send(Outcome::Refused(address, why))),
    }
    drop(slot);
}

/// The number of connections that are being authenticated, by address.
#[derive(Default)]
struct Pending(Mutex<BTreeMap<IpAddr, usize>>);

/// A reserved place among the pending connections, until it is dropped.
struct PendingSlot {
    pending: Arc<Pending>,
    address: IpAddr,
}

impl Pending {
    fn reserve(pending: &Arc<Self>, address: IpAddr) -> Option<PendingSlot> {
        let mut counts = pending.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from_address = counts.get(&address).copied().unwrap_or(0);
        let total = counts.values().sum::<usize>();
        if from_address >= MAX_PENDING_PER_ADDRESS || total >= MAX_PENDING {
            return None;
        }
        counts.insert(address, from_address + 1);
        Some(PendingSlot { pending: Arc::clone(pending), address })
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        let mut counts = self.pending.0.lock().unwrap_or_else(PoisonError::into_inner);
        match counts.get_mut(&self.address) {
            Some(n @ 2..) => *n -= 1,
            _ => drop(counts.remove(&self.address)),
        }
    }
}

#[cfg(test)]
mod tests;
