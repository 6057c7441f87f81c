//! Connections between ranks: those of the first ranks of any two of several machines, made by the
//! machines' parents.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::transport::acceptor::Acceptor;
use crate::transport::auth::{Key, Purpose};
use crate::transport::handshake::{HANDSHAKE_TIMEOUT, HandshakeError, initiate};
use crate::transport::record::SessionKeys;
use crate::units::Rank;

/// Another rank of a group without shared memory, and the connection to it.
#[derive(Debug)]
pub struct Peer {
    pub rank: Rank,
    /// Address of its machine, for messages.
    pub address: String,
    /// A connected stream.
    pub socket: OwnedFd,
    /// Keys of both directions; absent within a machine.
    pub keys: Option<SessionKeys>,
}

/// A [`Peer`] without its socket, which a rank inherits from its parent.
#[derive(Serialize, Deserialize)]
pub struct PeerDescription {
    rank: Rank,
    address: String,
    keys: Option<SessionKeys>,
}

impl PeerDescription {
    /// The peer, which its new owner alone can use, and the socket for it to inherit.
    pub fn of(Peer { rank, address, socket, keys }: Peer) -> (Self, OwnedFd) {
        (Self { rank, address, keys }, socket)
    }

    pub fn with_socket(self, socket: OwnedFd) -> Peer {
        let Self { rank, address, keys } = self;
        Peer { rank, address, socket, keys }
    }
}

/// Keys are never shown.
impl std::fmt::Debug for PeerDescription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} at {}", self.rank, self.address)
    }
}

/// Longest wait for all ranks to be connected.
pub const CONNECT_TIMEOUT: Duration = Duration::from_mins(1);
/// Time between two attempts to reach a node.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two looks whether all are still there.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Why the ranks are not connected.
#[derive(Debug)]
pub enum ConnectError {
    /// The system refused.
    Io {
        /// The operation that failed.
        what: String,
        source: io::Error,
    },
    /// The listener at this address does not hold the key.
    Unauthenticated(SocketAddr),
    /// These ranks did not connect within [`CONNECT_TIMEOUT`].
    Missing(String),
    /// It was broken off, as the caller asked for.
    BrokenOff,
}

/// Connects to `address`, again and again until `until` if it cannot be reached; another key at the
/// other end is an error at once.
pub fn connect_authenticated(
    address: impl ToSocketAddrs,
    key: &Key,
    purpose: Purpose,
    until: Instant,
) -> Result<(TcpStream, SessionKeys), HandshakeError> {
    loop {
        let connected = connect(&address, until).map_err(HandshakeError::Io);
        let connected = connected.and_then(|mut stream| {
            let keys = initiate(&mut stream, key, purpose)?;
            Ok((stream, keys))
        });
        match connected {
            // It does not listen yet, or is busy with other connections.
            Err(HandshakeError::Io(_)) if Instant::now() < until => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            connected => return connected,
        }
    }
}

/// Connects to one of the addresses. One that does not answer, as behind a firewall, delays neither
/// the others nor the deadline.
fn connect(address: &impl ToSocketAddrs, until: Instant) -> io::Result<TcpStream> {
    let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(&address, left.clamp(RETRY_INTERVAL, HANDSHAKE_TIMEOUT)) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Settings with which a node connects its first rank to those of the other nodes.
pub struct PeerConnections<'a> {
    /// This node, of so many.
    pub node: u32,
    pub nodes: u32,
    pub ranks_per_node: u32,
    /// Key of this run alone.
    pub key: Key,
    /// Names of all nodes.
    pub names: &'a [String],
}

impl PeerConnections<'_> {
    /// The connections of this node's first rank to those of all other nodes. This node connects to
    /// the nodes before it, at `lower`, and is connected to by those after it. Refused connections
    /// are reported through `warn`; `is_hopeless` is asked several times a second.
    pub fn connect(
        &self,
        listener: &TcpListener,
        lower: &[SocketAddr],
        warn: &mut dyn FnMut(&str),
        is_hopeless: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Peer>, ConnectError> {
        let refused = |what: &str| {
            let what = what.to_owned();
            move |source| ConnectError::Io { what, source }
        };
        let mut peers = Vec::new();
        // Listens first, so that no node waits for this one while it connects.
        let mut acceptor = Acceptor::open(listener, &self.key).map_err(refused("listen"))?;
        let until = Instant::now() + CONNECT_TIMEOUT;
        for (other, &address) in (0..).zip(lower) {
            let other = self.first_of(other);
            let purpose = Purpose::Ranks { from: self.first_of(self.node).0, to: other.0 };
            let connected = loop {
                let look = until.min(Instant::now() + LOOK_INTERVAL);
                match connect_authenticated(address, &self.key, purpose, look) {
                    Err(_) if is_hopeless() => return Err(ConnectError::BrokenOff),
                    Err(HandshakeError::Io(_)) if Instant::now() < until => {}
                    connected => break connected,
                }
            };
            let (stream, keys) = connected.map_err(|error| unreached(address, error))?;
            peers.push(self.peer(other, stream, keys));
        }
        let mut expected: Vec<Rank> =
            (self.node + 1..self.nodes).map(|other| self.first_of(other)).collect();
        while !expected.is_empty() {
            let look = until.min(Instant::now() + LOOK_INTERVAL);
            let Some(accepted) = acceptor.accept(look, warn) else {
                if is_hopeless() {
                    return Err(ConnectError::BrokenOff);
                }
                if Instant::now() >= until {
                    return Err(ConnectError::Missing(missing(&expected)));
                }
                continue;
            };
            let Purpose::Ranks { from, to } = accepted.purpose else { continue };
            if Rank(to) != self.first_of(self.node) {
                continue;
            }
            let Some(at) = expected.iter().position(|other| other.0 == from) else { continue };
            let other = expected.swap_remove(at);
            peers.push(self.peer(other, accepted.stream, accepted.keys));
        }
        Ok(peers)
    }

    fn first_of(&self, node: u32) -> Rank {
        Rank(node * self.ranks_per_node)
    }

    fn peer(&self, rank: Rank, stream: TcpStream, keys: SessionKeys) -> Peer {
        let node = (rank.0 / self.ranks_per_node) as usize;
        let address = self.names.get(node).cloned().unwrap_or_default();
        // Without it small messages are only slower.
        let _ = stream.set_nodelay(true);
        Peer { rank, address, socket: stream.into(), keys: Some(keys) }
    }
}

fn missing(expected: &[Rank]) -> String {
    let first = expected.first().copied().unwrap_or(Rank(0));
    match expected.len() - 1 {
        0 => format!("rank {first}"),
        more => format!("rank {first} and {more} more"),
    }
}

fn unreached(address: SocketAddr, error: HandshakeError) -> ConnectError {
    match error {
        // Ranks of other versions have been refused before.
        HandshakeError::Unauthenticated | HandshakeError::OtherVersion => {
            ConnectError::Unauthenticated(address)
        }
        HandshakeError::Io(source) => ConnectError::Io { what: format!("reach {address}"), source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_does_not_answer_is_given_up_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        let mut queue = Vec::new();
        // Nothing accepts: once the queue is full, further connections wait.
        let error = loop {
            match connect(&address, Instant::now()) {
                Ok(stream) => queue.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
