//! The parents of several machines find each other, agree on the plan, and connect their ranks.
//!
//! ```text
//! node k ──Hello {plan}──▶ node 0      after a handshake that proves the token (`transport::handshake`)
//! node k ◀─Welcome {run}── node 0      once all nodes have joined; or Refused
//! node k ─────────────────▶ node i     for i < k: a connection from k's first rank to i's
//! ```
//!
//! No port stays open once the ranks are connected.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::launch::PreparedRun;
use crate::launch::error_report::host;
use crate::launch::machines::compatibility;
use crate::launch::machines::nodes::{NodeConfig, NodeConnections, NodeRanks, Nodes, RemoteNode};
use crate::plan::Plan;
use crate::transport::acceptor::{Acceptor, AuthenticatedConnection};
use crate::transport::auth::{Key, Purpose, SentKey, SessionKeys};
use crate::transport::build_id::build_id;
use crate::transport::channel::Channel;
use crate::transport::handshake::{HANDSHAKE_TIMEOUT, HandshakeError};
use crate::transport::peer_connections::{
    CONNECT_TIMEOUT, ConnectError, PeerConnections, connect_authenticated,
};

/// Longest wait of a node for node 0 to prepare the run, which may have to generate data, after all
/// nodes have joined.
const PREPARE_TIMEOUT: Duration = Duration::from_mins(15);

/// Why the nodes of a run did not find each other.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeRendezvousError<E> {
    /// This is node 0, and it could not prepare the run. The other nodes were told.
    #[error(transparent)]
    Prepare(E),
    /// The system refused.
    #[error("node {node} cannot {what}: {source}")]
    Io {
        /// This node.
        node: u32,
        /// What was tried.
        what: String,
        /// Why not.
        source: io::Error,
    },
    /// A node did not join.
    #[error("node {node} waited {:.0} s, but {missing} did not come", waited.as_secs_f64())]
    Missing {
        /// This node.
        node: u32,
        /// Which nodes or ranks are missing.
        missing: String,
        /// How long.
        waited: Duration,
    },
    /// What listens at the address does not hold the token.
    #[error("the process listening at {address} does not prove that it has the token of this run")]
    Unauthenticated {
        /// Where node 0 should be.
        address: String,
    },
    /// The nodes do not fit together.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
}

impl<E> NodeRendezvousError<E> {
    fn connecting(node: u32) -> impl Fn(ConnectError) -> Self {
        move |error| match error {
            ConnectError::Io { what, source } => Self::Io { node, what, source },
            ConnectError::Unauthenticated(address) => {
                Self::Unauthenticated { address: address.to_string() }
            }
            ConnectError::Missing(missing) => {
                Self::Missing { node, missing, waited: CONNECT_TIMEOUT }
            }
        }
    }
}

/// The first message of a node.
#[derive(Serialize, Deserialize)]
struct Hello {
    version: String,
    node: u32,
    nodes: u32,
    host: String,
    /// Where its ranks can be reached.
    port: u16,
    plan: serde_json::Value,
}

/// Node 0's answer.
#[derive(Serialize, Deserialize)]
enum Answer {
    Welcome(Box<Welcome>),
    Refused(String),
}

#[derive(Serialize, Deserialize)]
struct Welcome {
    prepared: PreparedRun,
    /// Of this run alone: ranks of another run cannot connect.
    secret: SentKey,
    /// Address and name of each node but the first.
    nodes: Vec<(SocketAddr, String)>,
    /// Name of node 0.
    host: String,
}

/// Finds the other nodes. Node 0 prepares the run by `prepare` once all have joined, and sends it
/// to the others, which use it if their own plan is the same except for what may differ between
/// machines. `report` gets lines for the terminal.
///
/// # Errors
///
/// As [`NodeRendezvousError`].
pub(crate) fn join_nodes<E: fmt::Display>(
    config: &NodeConfig,
    plan: &Plan,
    prepare: impl FnOnce() -> Result<PreparedRun, E>,
    report: &mut dyn FnMut(&str),
) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
    if config.node == 0 {
        Host::open(config)?.welcome_all(plan, prepare, report)
    } else {
        join_host(config, plan, report)
    }
}

/// Node 0, which the others connect to.
struct Host<'a> {
    config: &'a NodeConfig,
    listener: TcpListener,
}

impl<'a> Host<'a> {
    fn open<E>(config: &'a NodeConfig) -> Result<Self, NodeRendezvousError<E>> {
        let address = (config.master.as_str(), config.port);
        let listener = TcpListener::bind(address).map_err(|source| {
            let (master, port) = address;
            let remedy = match source.kind() {
                ErrorKind::AddrInUse => "; choose another with `--master-port`",
                ErrorKind::AddrNotAvailable => "; node 0 must be the machine of `--master-addr`",
                _ => "",
            };
            let what = format!("listen at {master}:{port}{remedy}");
            NodeRendezvousError::Io { node: 0, what, source }
        })?;
        Ok(Self { config, listener })
    }

    fn welcome_all<E: fmt::Display>(
        self,
        plan: &Plan,
        prepare: impl FnOnce() -> Result<PreparedRun, E>,
        report: &mut dyn FnMut(&str),
    ) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
        let mut joined = self.gather(plan, report)?;
        let prepared = prepare().map_err(|error| {
            refuse(&mut joined, &format!("node 0 could not prepare the run: {error}"));
            NodeRendezvousError::Prepare(error)
        })?;
        let secret = Key::random().map_err(io_error(0, "draw random numbers"))?;
        send_run(&mut joined, &prepared, &secret).map_err(io_error(0, "send the plan"))?;
        let names: Vec<String> =
            std::iter::once(host()).chain(joined.iter().map(JoinedNode::name)).collect();
        let key = run_key(&self.config.token, &secret, &prepared);
        let ranks = NodeRanks::new(self.config, plan);
        let connections = peer_connections(self.config, ranks, key, &names);
        let peers = connections
            .connect(&self.listener, &[], report)
            .map_err(NodeRendezvousError::connecting(0))?;
        let remotes = joined.into_iter().map(|node| {
            let name = node.name();
            RemoteNode::new(node.node, name, node.channel)
        });
        let connections = NodeConnections { remotes: remotes.collect(), peers };
        let (run, timeout) = (prepared.folders.clone(), plan.distributed.timeout);
        Ok((prepared, Nodes::new(ranks, connections, run, timeout)))
    }

    /// Waits for all other nodes, and returns them in their order.
    fn gather<E>(
        &self,
        plan: &Plan,
        report: &mut dyn FnMut(&str),
    ) -> Result<Vec<JoinedNode>, NodeRendezvousError<E>> {
        let NodeConfig { nodes, ref master, port, .. } = *self.config;
        let acceptor = Acceptor::open(&self.listener, &self.config.token);
        let mut acceptor = acceptor.map_err(io_error(0, "listen"))?;
        let waited = plan.distributed.timeout;
        let until = Instant::now() + waited;
        let mut joined: Vec<Option<JoinedNode>> = (1..nodes).map(|_| None).collect();
        report(&format!("waiting for {} at {master}:{port} ...", missing(&joined)));
        while joined.iter().any(Option::is_none) {
            let Some(connection) = acceptor.accept(until, report) else {
                let missing = missing(&joined);
                return Err(NodeRendezvousError::Missing { node: 0, missing, waited });
            };
            if let Some((node, hello)) = JoinedNode::receive(connection) {
                self.register(node, &hello, plan, &mut joined, report)?;
            }
        }
        Ok(joined.into_iter().flatten().collect())
    }

    /// Adds a node. A second one of the same number is refused; one that does not fit ends the
    /// rendezvous for all.
    fn register<E>(
        &self,
        mut node: JoinedNode,
        hello: &Hello,
        plan: &Plan,
        joined: &mut [Option<JoinedNode>],
        report: &mut dyn FnMut(&str),
    ) -> Result<(), NodeRendezvousError<E>> {
        if let Some(why) = objection(hello, plan, self.config.nodes) {
            let reason = format!("node {} ({}): {why}", hello.node, node.name());
            refuse(joined.iter_mut().flatten().chain([&mut node]), &reason);
            return Err(NodeRendezvousError::Refused { reason });
        }
        // `objection` has checked the number.
        let slot = &mut joined[hello.node as usize - 1];
        match slot {
            Some(earlier) if !earlier.has_left() => {
                let why = format!("node {} has already joined: {}", hello.node, earlier.name());
                report(&format!("warning: {} was refused: {why}", node.name()));
                refuse([&mut node], &why);
            }
            _ => *slot = Some(node),
        }
        Ok(())
    }
}

/// "node 1, node 3"
fn missing(joined: &[Option<JoinedNode>]) -> String {
    let missing = (1..).zip(joined).filter(|(_, node)| node.is_none());
    let names: Vec<String> = missing.map(|(node, _)| format!("node {node}")).collect();
    names.join(", ")
}

/// Refuses nodes. One that has left gets no answer.
fn refuse<'a>(nodes: impl IntoIterator<Item = &'a mut JoinedNode>, reason: &str) {
    for node in nodes {
        let _ = node.channel.send_all(&Answer::Refused(reason.to_owned()), HANDSHAKE_TIMEOUT);
    }
}

/// Sends the run to all nodes, with what they need to connect to each other.
fn send_run(joined: &mut [JoinedNode], prepared: &PreparedRun, secret: &Key) -> io::Result<()> {
    let nodes: Vec<_> = joined.iter().map(|node| (node.address, node.name())).collect();
    for node in joined {
        let (prepared, nodes, host) = (prepared.clone(), nodes.clone(), host());
        let welcome = Welcome { prepared, secret: SentKey(secret.clone()), nodes, host };
        node.channel.send_all(&Answer::Welcome(Box::new(welcome)), CONNECT_TIMEOUT)?;
    }
    Ok(())
}

/// A node that has connected to node 0.
struct JoinedNode {
    node: u32,
    host: String,
    address: SocketAddr,
    channel: Channel,
}

impl JoinedNode {
    fn receive(connection: AuthenticatedConnection) -> Option<(Self, Hello)> {
        let mut channel = Channel::authenticated(connection.stream, &connection.keys).ok()?;
        let hello: Hello = channel.receive_one(HANDSHAKE_TIMEOUT).ok()?;
        if connection.purpose != Purpose::Node(hello.node) {
            return None;
        }
        let address = SocketAddr::new(connection.address, hello.port);
        Some((Self { node: hello.node, host: hello.host.clone(), address, channel }, hello))
    }

    fn name(&self) -> String {
        format!("{} at {}", self.host, self.address.ip())
    }

    /// Whether it has closed its connection; it sends nothing before it is answered.
    fn has_left(&self) -> bool {
        use rustix::net::{RecvFlags, recv};
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recv(&self.channel, &mut [0_u8][..], flags) != Err(rustix::io::Errno::AGAIN)
    }
}

/// Why a node does not belong to this run, if so.
fn objection(hello: &Hello, plan: &Plan, nodes: u32) -> Option<String> {
    if hello.version != build_id() {
        return Some(format!("it is ddprun {}, but node 0 is {}", hello.version, build_id()));
    }
    if hello.nodes != nodes {
        return Some(format!(
            "it counts {} machines, but node 0 counts {nodes}: with `--nnodes`, or ranks that a \
             launcher numbers machine by machine, as many on each",
            hello.nodes
        ));
    }
    if hello.node == 0 || hello.node >= nodes {
        return Some(format!("the nodes are numbered from 0 to {}", nodes.saturating_sub(1)));
    }
    compatibility::objection(plan, &hello.plan)
}

/// The key of this run's ranks. Another run with the same token has another one.
fn run_key(token: &Key, secret: &Key, prepared: &PreparedRun) -> Key {
    token.derive("ranks of a run", &[secret.bytes(), prepared.folders.id.as_bytes()])
}

fn peer_connections<'a>(
    config: &NodeConfig,
    ranks: NodeRanks,
    key: Key,
    names: &'a [String],
) -> PeerConnections<'a> {
    let NodeRanks { node, ranks_per_node } = ranks;
    PeerConnections { node, nodes: config.nodes, ranks_per_node, key, names }
}

/// Another node: connects to node 0, and waits there for the run.
fn join_host<E>(
    config: &NodeConfig,
    plan: &Plan,
    report: &mut dyn FnMut(&str),
) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
    let (node, timeout) = (config.node, plan.distributed.timeout);
    let (stream, keys) = connect_to_host(config, timeout, report)?;
    let addresses = stream.local_addr().and_then(|own| Ok((own.ip(), stream.peer_addr()?)));
    let (own_ip, host_address) = addresses.map_err(io_error(node, "tell its own address"))?;
    let listener = TcpListener::bind((own_ip, 0)).map_err(io_error(node, "listen"))?;
    let port = listener.local_addr().map_err(io_error(node, "listen"))?.port();
    let channel = Channel::authenticated(stream, &keys);
    let mut channel = channel.map_err(io_error(node, "use its connection"))?;
    let welcome = receive_run(&mut channel, config, plan, port)?;
    let Welcome { prepared, secret, nodes, host } = welcome;
    let prepared = PreparedRun { plan: compatibility::adapted(&prepared.plan, plan), ..prepared };
    let key = run_key(&config.token, &secret.0, &prepared);
    let first = format!("{host} at {}", host_address.ip());
    let (addresses, names): (Vec<_>, Vec<_>) =
        std::iter::once((host_address, first.clone())).chain(nodes).unzip();
    let ranks = NodeRanks::new(config, plan);
    let lower = addresses.get(..node as usize).unwrap_or_default();
    let peers = peer_connections(config, ranks, key, &names)
        .connect(&listener, lower, report)
        .map_err(NodeRendezvousError::connecting(node))?;
    let remotes = vec![RemoteNode::new(0, first, channel)];
    let run = prepared.folders.clone();
    let nodes = Nodes::new(ranks, NodeConnections { remotes, peers }, run, timeout);
    Ok((prepared, nodes))
}

/// A connection to node 0, which may be started later.
fn connect_to_host<E>(
    config: &NodeConfig,
    waited: Duration,
    report: &mut dyn FnMut(&str),
) -> Result<(TcpStream, SessionKeys), NodeRendezvousError<E>> {
    let NodeConfig { node, ref master, port, ref token, .. } = *config;
    let address = format!("{master}:{port}");
    report(&format!("node {node} connects to node 0 at {address} ..."));
    let until = Instant::now() + waited;
    let connected =
        connect_authenticated((master.as_str(), port), token, Purpose::Node(node), until);
    connected.map_err(|error| match error {
        HandshakeError::Unauthenticated => NodeRendezvousError::Unauthenticated { address },
        HandshakeError::OtherVersion => {
            let reason = format!("node 0 at {address} is another version of ddprun");
            NodeRendezvousError::Refused { reason }
        }
        HandshakeError::Io(_) => {
            NodeRendezvousError::Missing { node, missing: format!("node 0 at {address}"), waited }
        }
    })
}

/// Introduces this node, and waits for the run.
fn receive_run<E>(
    channel: &mut Channel,
    config: &NodeConfig,
    plan: &Plan,
    port: u16,
) -> Result<Welcome, NodeRendezvousError<E>> {
    let NodeConfig { node, nodes, .. } = *config;
    let plan_as_json = serde_json::to_value(plan).unwrap_or_default();
    let (version, host) = (build_id().to_owned(), host());
    let hello = Hello { version, node, nodes, host, port, plan: plan_as_json };
    channel.send_all(&hello, CONNECT_TIMEOUT).map_err(io_error(node, "join node 0"))?;
    let answer = channel.receive_one(plan.distributed.timeout + PREPARE_TIMEOUT);
    match answer.map_err(io_error(node, "receive the plan from node 0"))? {
        Answer::Welcome(welcome) => Ok(*welcome),
        Answer::Refused(reason) => Err(NodeRendezvousError::Refused { reason }),
    }
}

fn io_error<E>(node: u32, what: &'static str) -> impl Fn(io::Error) -> NodeRendezvousError<E> {
    move |source| NodeRendezvousError::Io { node, what: what.to_owned(), source }
}
