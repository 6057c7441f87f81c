//! Messages between the processes of a run: the parent and its ranks, and whoever prepares the run
//! and those that wait for it.

use std::convert::Infallible;
use std::fmt;
#[cfg(any(test, feature = "fuzzing"))]
use std::io;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::event::Stop;
use crate::launch::error_report::ErrorReport;
use crate::plan::{Plan, RankPlan, RunFolders};
use crate::transport::PeerDescription;
#[cfg(any(test, feature = "fuzzing"))]
use crate::transport::channel::Channel;
use crate::user_error::{ErrorPage, ExitCode};

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

/// A run as the process that prepares it sends it to the ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PreparedRun {
    pub plan: Plan,
    pub folders: RunFolders,
    /// True if ranks continue from the newest checkpoint.
    pub resume: bool,
}

/// The reason why a process could not prepare a run.
pub trait PrepareError: fmt::Display {
    /// The exit code of all ranks that wait for it.
    fn exit_code(&self) -> ExitCode {
        ExitCode::Refused
    }
}

impl PrepareError for ErrorPage {
    fn exit_code(&self) -> ExitCode {
        self.code()
    }
}

impl PrepareError for String {}
impl PrepareError for Infallible {}

/// Sent in place of a run to processes that wait for one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NoRun {
    pub reason: String,
    /// Exit code of all processes that receive it.
    pub exit_code: ExitCode,
}

impl NoRun {
    /// Another program, experiment or world.
    pub(in crate::launch) fn unfit(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), exit_code: ExitCode::Refused }
    }

    /// A failed preparation by `who`.
    pub(in crate::launch) fn of(who: &str, error: &impl PrepareError) -> Self {
        let reason = format!("{who} could not prepare the run: {error}");
        Self { reason, exit_code: error.exit_code() }
    }
}

impl fmt::Display for NoRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
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
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::mutated;

    fn frame(message: &impl serde::Serialize) -> Vec<u8> {
        let body = serde_json::to_vec(message).unwrap();
        [&(body.len() as u32).to_le_bytes()[..], &body].concat()
    }

    /// An error, and never a crash or a large allocation.
    #[test]
    fn a_damaged_message_is_an_error_or_another_message() {
        let whole = [
            frame(&FromRank::Finished),
            frame(&FromRank::Saved),
            frame(&ToRank::Stop(Stop::Interrupt)),
            [frame(&FromRank::Finished), frame(&FromRank::Saved)].concat(),
            u32::MAX.to_le_bytes().to_vec(),
        ];
        let (mut received, mut refused, mut waiting) = (0, 0, 0);
        for bytes in mutated::inputs(&whole, 3000, 27) {
            let (mut from, to) = UnixStream::pair().unwrap();
            let mut to = Channel::new(to).unwrap();
            from.write_all(&bytes).unwrap();
            drop(from);
            match to.receive::<FromRank>() {
                Ok(messages) if messages.is_empty() => waiting += 1,
                Ok(_) => received += 1,
                Err(_) => refused += 1,
            }
        }
        assert!(received > 100 && refused > 500 && waiting > 100, "{received} {refused} {waiting}");
    }
}
