//! A connection to another rank.

use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

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
