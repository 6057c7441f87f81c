//! Messages of machines that join a rendezvous, and the errors of a failed one.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::launch::machines::rendezvous::{NodeConfig, NodeRanks, Rendezvous, Session};
use crate::launch::{NoRun, PrepareError, PreparedRun};
use crate::plan::Plan;
use crate::transport::auth::{Key, SentKey};
use crate::transport::peer_connections::{CONNECT_TIMEOUT, ConnectError, PeerConnections};
use crate::user_error::ExitCode;

/// A failed rendezvous of machines.
#[derive(Debug, thiserror::Error)]
pub enum NodeRendezvousError<E> {
    /// This is node 0, and it could not prepare the run. The other nodes were told.
    #[error(transparent)]
    Prepare(E),
    /// The system refused.
    #[error("node {node} cannot {what}: {source}")]
    Io { node: u32, what: String, source: io::Error },
    /// A node did not join.
    #[error("node {node} waited {:.0} s, but {missing} did not come", waited.as_secs_f64())]
    Missing {
        node: u32,
        /// Names of the missing nodes or ranks.
        missing: String,
        waited: Duration,
    },
    /// The process listening at the address does not hold the token.
    #[error("the process listening at {address} does not prove that it has the token of this run")]
    Unauthenticated {
        /// Expected address of node 0.
        address: String,
    },
    /// This node was asked to stop while it waited.
    #[error("node {node} was asked to stop while it waited for the others")]
    CalledOff { node: u32 },
    /// Some met, and one of them left before all ranks were connected.
    #[error("node {node} met the others, and one of them left before all ranks were connected")]
    BrokenOff { node: u32 },
    /// The nodes do not fit together.
    #[error("{0}")]
    Refused(NoRun),
}

impl<E: PrepareError> NodeRendezvousError<E> {
    /// The message to the other ranks of this machine, which wait for a run.
    pub(in crate::launch) fn for_others(&self) -> NoRun {
        match self {
            Self::Prepare(error) => NoRun::of("node 0", error),
            Self::Refused(why) => why.clone(),
            lost => NoRun { reason: lost.to_string(), exit_code: ExitCode::Peer },
        }
    }
}

impl<E> NodeRendezvousError<E> {
    /// True if another attempt may succeed, when machines that have met before meet again.
    pub(in crate::launch) fn may_pass(&self) -> bool {
        let passes =
            matches!(self, Self::Io { .. } | Self::Missing { .. } | Self::BrokenOff { .. });
        passes || matches!(self, Self::Unauthenticated { .. })
    }

    /// True if node 0 may be between two rendezvous: it has ended the connection, or listens with
    /// the key of a rendezvous.
    pub(in crate::launch) fn may_pass_soon(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        match self {
            Self::Unauthenticated { .. } => true,
            Self::Io { what, source, .. } if [JOIN, RECEIVE].contains(&what.as_str()) => {
                matches!(source.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
            }
            _ => false,
        }
    }

    pub(in crate::launch) fn connecting(node: u32) -> impl Fn(ConnectError) -> Self {
        move |error| match error {
            ConnectError::Io { what, source } => Self::Io { node, what, source },
            ConnectError::Unauthenticated(address) => {
                Self::Unauthenticated { address: address.to_string() }
            }
            ConnectError::BrokenOff => Self::BrokenOff { node },
            ConnectError::Missing(missing) => {
                Self::Missing { node, missing, waited: CONNECT_TIMEOUT }
            }
        }
    }
}

/// Reason of a refusal by a node 0 that is stopped before the rendezvous.
pub(in crate::launch) const STOPPED: &str = "node 0 was asked to stop";
/// Failed operation of a node if node 0 has ended the connection.
pub(in crate::launch) const JOIN: &str = "join node 0";
/// Failed operation at a later time.
pub(in crate::launch) const RECEIVE: &str = "receive the plan from node 0";

/// The first message of a node.
#[derive(Serialize, Deserialize)]
pub(in crate::launch) struct Hello {
    pub(in crate::launch) version: String,
    pub(in crate::launch) node: u32,
    pub(in crate::launch) nodes: u32,
    pub(in crate::launch) host: String,
    /// Port at which its ranks can be reached.
    pub(in crate::launch) port: u16,
    pub(in crate::launch) plan: serde_json::Value,
    /// Session that the node comes from; absent if it was just started.
    pub(in crate::launch) session: Option<Session>,
}

/// Node 0's answer.
#[derive(Serialize, Deserialize)]
pub(in crate::launch) enum Answer {
    Welcome(Box<Welcome>),
    /// The others train; it may take part from their next rendezvous on.
    Wait,
    Refused(NoRun),
}

#[derive(Serialize, Deserialize)]
pub(in crate::launch) struct Welcome {
    pub(in crate::launch) prepared: PreparedRun,
    /// Secret of this run alone: ranks of another run cannot connect.
    pub(in crate::launch) secret: SentKey,
    /// Address and name of each node but the first, of those that take part.
    pub(in crate::launch) nodes: Vec<(SocketAddr, String)>,
    /// Name of node 0.
    pub(in crate::launch) host: String,
    pub(in crate::launch) session: Session,
}

/// A machine that joins a rendezvous.
#[derive(Clone, Copy)]
pub(in crate::launch) struct Participant<'a> {
    pub(in crate::launch) config: &'a NodeConfig,
    /// The plan for all machines.
    pub(in crate::launch) plan: &'a Plan,
    /// Plans for fewer machines.
    pub(in crate::launch) smaller: &'a [Plan],
    /// Session that it comes from, if it has met the others before.
    pub(in crate::launch) session: Option<&'a Session>,
}

/// Time between two looks for requests to stop.
pub(in crate::launch) const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// Deadline of a machine that waits for the others, and what ends the wait before.
pub(in crate::launch) struct JoinWait<'a> {
    pub(in crate::launch) until: Instant,
    /// From the beginning to `until`.
    pub(in crate::launch) longest: Duration,
    /// True if the run was asked to stop meanwhile; called several times a second.
    pub(in crate::launch) is_called_off: &'a mut dyn FnMut() -> bool,
}

impl JoinWait<'_> {
    /// End of the next part of the wait, after which to look for requests to stop.
    pub(in crate::launch) fn next_look(&self) -> Instant {
        self.until.min(Instant::now() + LOOK_INTERVAL)
    }

    /// Restarts the wait, as a node came and left again.
    pub(in crate::launch) fn restart(&mut self) {
        self.until = Instant::now() + self.longest;
    }

    pub(in crate::launch) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }
}

/// The key of this run's ranks. Another run with the same token has another one.
pub(in crate::launch) fn run_key(token: &Key, secret: &Key, prepared: &PreparedRun) -> Key {
    token.derive("ranks of a run", &[secret.bytes(), prepared.folders.id.as_bytes()])
}

pub(in crate::launch) fn peer_connections<'a>(
    rendezvous: &Rendezvous,
    secret: &Key,
    names: &'a [String],
) -> PeerConnections<'a> {
    let NodeRanks { place, ranks_per_node } = rendezvous.ranks();
    let nodes = rendezvous.session.present.len() as u32;
    let key = run_key(&rendezvous.config.token, secret, &rendezvous.prepared);
    PeerConnections { node: place, nodes, ranks_per_node, key, names }
}

pub(in crate::launch) fn io_error<E>(
    node: u32,
    what: &'static str,
) -> impl Fn(io::Error) -> NodeRendezvousError<E> {
    move |source| NodeRendezvousError::Io { node, what: what.to_owned(), source }
}
