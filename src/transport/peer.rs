//! A connection to another rank.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::transport::auth::{SentKey, SessionKeys};
use crate::units::Rank;

/// Another rank of a group without shared memory, and the connection to it.
#[derive(Debug)]
pub struct Peer {
    /// The rank.
    pub rank: Rank,
    /// Its machine, for messages.
    pub address: String,
    /// A connected stream.
    pub socket: OwnedFd,
    /// Keys of both directions; absent within a machine.
    pub keys: Option<SessionKeys>,
}

/// A [`Peer`] without its socket, which a rank inherits from its parent.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct PeerDescription {
    rank: Rank,
    address: String,
    keys: Option<[SentKey; 2]>,
}

impl PeerDescription {
    pub(crate) fn of(peer: &Peer) -> Self {
        let keys = peer.keys.clone();
        let keys = keys.map(|SessionKeys { send, receive }| [SentKey(send), SentKey(receive)]);
        Self { rank: peer.rank, address: peer.address.clone(), keys }
    }

    pub(crate) fn with_socket(self, socket: OwnedFd) -> Peer {
        let keys =
            self.keys.map(|[send, receive]| SessionKeys { send: send.0, receive: receive.0 });
        Peer { rank: self.rank, address: self.address, socket, keys }
    }
}

/// Keys are never shown.
impl std::fmt::Debug for PeerDescription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} at {}", self.rank, self.address)
    }
}
