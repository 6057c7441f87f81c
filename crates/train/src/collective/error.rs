//! Errors of collectives.

use std::sync::Arc;
use std::time::Duration;

use crate::collective::Call;
use crate::units::Rank;
use crate::user_error::{ExitCode, UserError};

/// A rank that did not join a call in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingRank {
    pub rank: Rank,
    /// The last call that it has begun.
    pub begun: u64,
}

/// A failure of a collective. Any of them ends the group.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Some ranks did not join the call within the deadline.
    #[error("timed out waiting for {} after {:.1} s in {call}", list(missing), waited.as_secs_f64())]
    Timeout {
        /// The call in which this rank waits.
        call: Call,
        /// The ranks that it waits for.
        missing: Vec<MissingRank>,
        /// Time that this rank waited.
        waited: Duration,
    },
    /// The connection to a rank ended: its process, its machine or the network is gone.
    #[error("the connection to rank {rank} on {address} ended in {call}: {why}")]
    Gone {
        rank: Rank,
        /// Machine of that rank.
        address: String,
        /// The call of this rank.
        call: Call,
        /// The system's reason.
        why: String,
    },
    /// The connections to the other ranks cannot be used.
    #[error("the connections to the other ranks cannot be used: {what}")]
    Connections { what: String },
    /// Ranks make different calls.
    #[error("rank {} is in {}, but rank {} is in {}", first.0, first.1, second.0, second.1)]
    Mismatch {
        /// Rank 0, or the lower one of two, and its call.
        first: (Rank, Call),
        /// The first rank that differs, and its call.
        second: (Rank, Call),
    },
    /// A rank ended the group.
    #[error("{}", ended(*by, reason))]
    Aborted {
        /// The rank.
        by: Rank,
        reason: String,
    },
    /// NCCL failed, or a rank did not join a sum in time.
    #[error("NCCL: {what}")]
    Nccl {
        /// What, in NCCL's words or ours.
        what: String,
    },
    /// The MPI library failed.
    #[error("MPI: {what}")]
    Mpi {
        /// What, in its words or ours.
        what: String,
    },
    /// The shared mapping cannot be used.
    #[error("the shared mapping cannot be used: {what}")]
    Mapping {
        what: String,
        /// The system's reason, if it refused.
        #[source]
        source: Option<Arc<std::io::Error>>,
    },
}

impl Error {
    /// The ranks that did not join the call in time.
    pub fn missing(&self) -> &[MissingRank] {
        match self {
            Self::Timeout { missing, .. } => missing,
            _ => &[],
        }
    }

    /// Returns the rank that ended the group and its reason, for the messages of `rank` to others.
    pub(super) fn abort_reason(&self, rank: Rank) -> (Rank, String) {
        match self {
            Self::Aborted { by, reason } => (*by, reason.clone()),
            other => (rank, other.to_string()),
        }
    }

    pub(super) fn mapping(what: impl Into<String>) -> Self {
        Self::Mapping { what: what.into(), source: None }
    }
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        ExitCode::Peer
    }

    fn help(&self) -> Option<String> {
        let Self::Aborted { reason, .. } = self else { return None };
        let rank = reason.strip_suffix(" died")?.split_whitespace().nth(1)?;
        Some(format!(
            "see the end of `rank-{rank}.log` for the cause, and `dmesg` for whether memory ran \
             out; then `ddprun resume` by the same launcher continues from the newest checkpoint"
        ))
    }
}

/// A reason that names a rank, as one that has died, needs no other.
fn ended(by: Rank, reason: &str) -> String {
    if reason.starts_with("rank ") {
        return reason.to_owned();
    }
    format!("rank {by} ended the group: {reason}")
}

fn list(missing: &[MissingRank]) -> String {
    if missing.is_empty() {
        return "data of other ranks".to_owned();
    }
    let each = missing.iter().map(|m| format!("rank {} (in call {})", m.rank, m.begun));
    each.collect::<Vec<_>>().join(", ")
}
