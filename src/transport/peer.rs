//! Another rank, as one rank reaches it.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::transport::auth::{Key, Session};
use crate::units::Rank;

/// Another rank of a group without shared memory, and the way to it.
#[derive(Debug)]
pub struct Peer {
    /// The rank.
    pub rank: Rank,
    /// Its machine, in words.
    pub address: String,
    /// A connected stream.
    pub socket: OwnedFd,
    /// Keys of both directions; absent within a machine, where nobody is between.
    pub session: Option<Session>,
}

/// A peer as the parent tells its rank of it, beside the inherited socket.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct PeerWord {
    rank: Rank,
    address: String,
    keys: Option<[[u8; 32]; 2]>,
}

impl PeerWord {
    pub(crate) fn of(peer: &Peer) -> Self {
        let keys = peer.session.as_ref().map(|keys| [*keys.send.bytes(), *keys.receive.bytes()]);
        Self { rank: peer.rank, address: peer.address.clone(), keys }
    }

    /// The peer, with its socket.
    pub(crate) fn with(self, socket: OwnedFd) -> Peer {
        let session = self
            .keys
            .map(|[send, receive]| Session { send: Key::new(send), receive: Key::new(receive) });
        Peer { rank: self.rank, address: self.address, socket, session }
    }
}

/// Keys are never shown.
impl std::fmt::Debug for PeerWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} at {}", self.rank, self.address)
    }
}
