//! Messages between the parent and its ranks.

#[cfg(any(test, feature = "fuzzing"))]
use std::io;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::event::Stop;
use crate::launch::error_report::ErrorReport;
use crate::plan::RankPlan;
use crate::transport::PeerDescription;
#[cfg(any(test, feature = "fuzzing"))]
use crate::transport::channel::Channel;

/// From a rank to its parent.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::launch) enum FromRank {
    /// It failed, and is about to exit.
    Failed(Box<ErrorReport>),
    /// It has done all its work, and is about to exit.
    Finished,
    /// A checkpoint is on disk.
    Saved,
    /// Something happened in the run, as `events.jsonl` has it.
    Event(Map<String, Value>),
}

/// From the parent to a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::launch) enum ToRank {
    /// The first message: what to do.
    Plan(Box<RankPlan>),
    /// The second, in a run over several machines: which ranks its inherited sockets are connected
    /// to.
    Peers(Vec<PeerDescription>),
    /// Stop at the end of the step.
    Stop(Stop),
    /// Wait no longer for other ranks, and report which are missing.
    GiveUp,
}

/// Receives `bytes` as the parent and as a rank; returns whether each was understood.
#[cfg(any(test, feature = "fuzzing"))]
pub fn receive_both(bytes: &[u8]) -> io::Result<[bool; 2]> {
    use std::io::Write;
    let receive = || {
        let (mut from, to) = std::os::unix::net::UnixStream::pair()?;
        // More would fill the socket's buffer.
        from.write_all(&bytes[..bytes.len().min(64 << 10)])?;
        Channel::new(to)
    };
    let (mut parent, mut rank) = (receive()?, receive()?);
    Ok([parent.receive::<FromRank>().is_ok(), rank.receive::<ToRank>().is_ok()])
}

#[cfg(test)]
mod fuzz_tests;
