//! The ranks of several machines -> connections between any two of them, made by the parents.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::launch::machines::node_rendezvous::{MeetError, io_error};
use crate::launch::machines::nodes::Place;
use crate::transport::Peer;
use crate::transport::acceptor::Acceptor;
use crate::transport::auth::{Key, Purpose, Session};
use crate::transport::handshake::{PATIENCE, Unmet, handshake};
use crate::units::Rank;

/// Longest wait for all ranks to be connected.
pub(in crate::launch) const CONNECT_PATIENCE: Duration = Duration::from_mins(1);
/// Time between two tries to reach a node.
const RETRY: Duration = Duration::from_millis(100);

/// Connects until the other end has proved itself. Only one that cannot is an error before `until`.
pub(in crate::launch) fn reach(
    address: impl ToSocketAddrs,
    key: &Key,
    purpose: Purpose,
    until: Instant,
) -> Result<(TcpStream, Session), Unmet> {
    loop {
        let met = connect(&address, until).map_err(Unmet::Io).and_then(|mut stream| {
            let session = handshake(&mut stream, key, purpose)?;
            Ok((stream, session))
        });
        match met {
            // Not there yet, or too busy with others.
            Err(Unmet::Io(_)) if Instant::now() < until => std::thread::sleep(RETRY),
            met => return met,
        }
    }
}

/// Connects to one of the addresses. One that answers nothing, as behind a firewall, keeps neither the others nor the
/// deadline waiting.
fn connect(address: &impl ToSocketAddrs, until: Instant) -> io::Result<TcpStream> {
    let mut refused = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in address.to_socket_addrs()? {
        let left = until.saturating_duration_since(Instant::now());
        match TcpStream::connect_timeout(&address, left.clamp(RETRY, PATIENCE)) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// The connections between the ranks of all nodes.
pub(in crate::launch) struct PeerConnections<'a> {
    pub(in crate::launch) place: &'a Place,
    /// Of this run alone.
    pub(in crate::launch) key: Key,
    /// Of all nodes.
    pub(in crate::launch) names: &'a [String],
    /// Of each node.
    pub(in crate::launch) ranks: u32,
}

impl PeerConnections<'_> {
    /// For each rank of this node, those that it talks to. This node connects to `lower` ones, and higher ones to it.
    pub(in crate::launch) fn connect<E>(
        &self,
        listener: &TcpListener,
        lower: &[SocketAddr],
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<Vec<Peer>>, MeetError<E>> {
        let node = self.place.node;
        let mut peers = self.within().map_err(io_error(node, "connect its own ranks"))?;
        // Open first, so that nobody waits for us while we connect.
        let mut acceptor = Acceptor::open(listener, &self.key).map_err(io_error(node, "listen"))?;
        let until = Instant::now() + CONNECT_PATIENCE;
        for (other, address) in (0..).zip(lower) {
            for (from, to) in self.pairs(other) {
                let purpose = Purpose::Ranks { from: from.0, to: to.0 };
                let (stream, session) = reach(address, &self.key, purpose, until)
                    .map_err(|unmet| unreached(node, *address, unmet))?;
                self.keep(&mut peers, (from, to), stream, session);
            }
        }
        let mut expected: Vec<(Rank, Rank)> =
            (node + 1..self.place.nodes).flat_map(|other| self.pairs(other)).collect();
        while !expected.is_empty() {
            let Some(guest) = acceptor.wait(until, say) else {
                let (_, rank) = expected[0];
                let missing = match expected.len() - 1 {
                    0 => format!("rank {rank}"),
                    more => format!("rank {rank} and {more} more"),
                };
                return Err(MeetError::Missing { node, missing, waited: CONNECT_PATIENCE });
            };
            let Purpose::Ranks { from, to } = guest.purpose else { continue };
            let pair = (Rank(to), Rank(from));
            let Some(at) = expected.iter().position(|other| *other == pair) else { continue };
            expected.swap_remove(at);
            self.keep(&mut peers, pair, guest.stream, guest.session);
        }
        Ok(peers)
    }

    /// Each rank of this node with each of another.
    fn pairs(&self, other: u32) -> impl Iterator<Item = (Rank, Rank)> + use<> {
        let (mine, theirs, n) = (self.place.node * self.ranks, other * self.ranks, self.ranks);
        (mine..mine + n).flat_map(move |mine| {
            (theirs..theirs + n).map(move |theirs| (Rank(mine), Rank(theirs)))
        })
    }

    fn keep(
        &self,
        peers: &mut [Vec<Peer>],
        (own, other): (Rank, Rank),
        stream: TcpStream,
        session: Session,
    ) {
        let address = self.names.get((other.0 / self.ranks) as usize).cloned().unwrap_or_default();
        // A delay of small messages is the only loss without it.
        let _ = stream.set_nodelay(true);
        let peer = Peer { rank: other, address, socket: stream.into(), session: Some(session) };
        peers[(own.0 % self.ranks) as usize].push(peer);
    }

    /// The ranks of this node among themselves.
    fn within(&self) -> io::Result<Vec<Vec<Peer>>> {
        let first = self.place.node * self.ranks;
        let mut peers: Vec<Vec<Peer>> = (0..self.ranks).map(|_| Vec::new()).collect();
        for a in 0..self.ranks {
            for b in a + 1..self.ranks {
                let (to_b, to_a) = UnixStream::pair()?;
                for (own, other, socket) in [(a, b, to_b), (b, a, to_a)] {
                    let (rank, address) = (Rank(first + other), "this machine".to_owned());
                    let socket = socket.into();
                    peers[own as usize].push(Peer { rank, address, socket, session: None });
                }
            }
        }
        Ok(peers)
    }
}

fn unreached<E>(node: u32, address: SocketAddr, unmet: Unmet) -> MeetError<E> {
    match unmet {
        Unmet::Unproved => MeetError::Stranger { address: address.to_string() },
        Unmet::Io(source) => MeetError::Io { node, what: format!("reach {address}"), source },
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
        // Nobody accepts: once the queue is full, the system lets those who knock wait.
        let error = loop {
            match connect(&address, Instant::now()) {
                Ok(stream) => queue.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
