//! Messages between the parent and its ranks.

#[cfg(any(test, feature = "fuzzing"))]
use std::io;

use serde::{Deserialize, Serialize};

use crate::launch::{ErrorReport, Stop};
use crate::plan::RankPlan;
#[cfg(any(test, feature = "fuzzing"))]
use crate::transport::channel::Channel;
use crate::transport::peer::PeerWord;

/// What a rank says.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::launch) enum FromRank {
    /// It failed, and is about to exit.
    Failed(Box<ErrorReport>),
    /// It has done all its work, and is about to exit.
    Finished,
    /// A checkpoint is on disk.
    Saved,
}

/// What the parent says.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::launch) enum ToRank {
    /// First: what to do.
    Plan(Box<RankPlan>),
    /// Then, in a run over several machines: to whom its further sockets lead.
    Peers(Vec<PeerWord>),
    /// To stop at the next step.
    Stop(Stop),
    /// To wait no longer for other ranks, and to say for whom.
    GiveUp,
}

/// Receives `bytes` as the parent and as a rank; returns whether each was understood.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn receive_both(bytes: &[u8]) -> io::Result<[bool; 2]> {
    use std::io::Write;
    let receive = || {
        let (mut from, to) = std::os::unix::net::UnixStream::pair()?;
        // More would fill the socket.
        from.write_all(&bytes[..bytes.len().min(64 << 10)])?;
        Channel::new(to)
    };
    let (mut parent, mut rank) = (receive()?, receive()?);
    Ok([parent.receive::<FromRank>().is_ok(), rank.receive::<ToRank>().is_ok()])
}

#[cfg(test)]
mod fuzz_tests;
