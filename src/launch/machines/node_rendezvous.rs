//! The parents of several machines find each other, agree on the plan, and connect their ranks.
//!
//! ```text
//! node k ──Hello {plan}──▶ node 0      after a handshake that proves the token (`transport::handshake`)
//! node k ◀─Welcome {run}── node 0      once all nodes have joined; or Refused
//! node k ─────────────────▶ node i     for i < k: a connection from k's first rank to i's
//! ```
//!
//! No port stays open once the ranks are connected. After a failure the machines meet again in the
//! same way (`next_meeting`): each says from which run and meeting it comes, if from any. One from
//! an older meeting is refused; one from none takes the place of a parent that has died.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::launch::PreparedRun;
use crate::launch::error_report::host;
use crate::launch::machines::compatibility;
use crate::launch::machines::nodes::{
    Meeting, NodeConfig, NodeConnections, NodeRanks, Nodes, RemoteNode, Session, plan_for,
};
use crate::launch::machines::waiting::{LOOK_INTERVAL, Waiting};
use crate::plan::Plan;
use crate::transport::acceptor::{Acceptor, AuthenticatedConnection};
use crate::transport::auth::{Key, Purpose, SessionKeys};
use crate::transport::build_id::build_id;
use crate::transport::channel::Channel;
use crate::transport::handshake::{HANDSHAKE_TIMEOUT, HandshakeError};
use crate::transport::peer_connections::{
    CONNECT_TIMEOUT, ConnectError, PeerConnections, connect_authenticated,
};

/// Longest wait of a node for node 0 to prepare the run, which may have to generate data, after all
/// nodes have joined.
const PREPARE_TIMEOUT: Duration = Duration::from_mins(15);

/// Time for machines to come back that did not take part before, once all others are there.
const RETURN_TIME: Duration = Duration::from_secs(5);

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
    /// This node was asked to stop while it waited.
    #[error("node {node} was asked to stop while it waited for the others")]
    CalledOff {
        /// This node.
        node: u32,
    },
    /// The nodes do not fit together.
    #[error("{reason}")]
    Refused {
        /// Why.
        reason: String,
    },
}

impl<E> NodeRendezvousError<E> {
    /// Whether another attempt may succeed, when machines that have met before meet again.
    pub(in crate::launch) fn may_pass(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Missing { .. } | Self::Unauthenticated { .. })
    }

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
    /// Where it comes from; absent if it was just started.
    session: Option<Session>,
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
    secret: [u8; 32],
    /// Address and name of each node but the first, of those that take part.
    nodes: Vec<(SocketAddr, String)>,
    /// Name of node 0.
    host: String,
    session: Session,
}

/// Finds the other nodes. Node 0 prepares the run by `prepare` once all have joined, and sends it
/// to the others, which use it if their own plan is the same except for what may differ between
/// machines. `prepare` gets the id of the run that the others want to continue, if they have lost
/// the node 0 of before. `smaller` are the plans of fewer machines that the run may continue with,
/// if some do not come back. `report` gets lines for the terminal.
///
/// # Errors
///
/// As [`NodeRendezvousError`].
pub(crate) fn join_nodes<E: fmt::Display>(
    config: &NodeConfig,
    plan: &Plan,
    smaller: &[Plan],
    prepare: impl FnOnce(Option<&str>) -> Result<PreparedRun, E>,
    report: &mut dyn FnMut(&str),
) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
    let longest = plan.distributed.timeout;
    let mut waiting =
        Waiting { until: Instant::now() + longest, longest, is_called_off: &mut || false };
    let place = Place { config, plan, smaller, session: None };
    meet(place, prepare, &mut waiting, report)
}

/// A machine that wants to meet the others.
#[derive(Clone, Copy)]
pub(in crate::launch) struct Place<'a> {
    pub(in crate::launch) config: &'a NodeConfig,
    /// Of all machines.
    pub(in crate::launch) plan: &'a Plan,
    /// Of fewer.
    pub(in crate::launch) smaller: &'a [Plan],
    /// Where it comes from, if it has met the others before.
    pub(in crate::launch) session: Option<&'a Session>,
}

/// As [`join_nodes`], also for machines that have met before.
pub(in crate::launch) fn meet<E: fmt::Display>(
    place: Place<'_>,
    prepare: impl FnOnce(Option<&str>) -> Result<PreparedRun, E>,
    waiting: &mut Waiting<'_>,
    report: &mut dyn FnMut(&str),
) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
    if place.config.node == 0 {
        Host::open(place)?.welcome_all(prepare, waiting, report)
    } else {
        join_host(place, waiting, report)
    }
}

/// Node 0, which the others connect to.
struct Host<'a> {
    place: Place<'a>,
    listener: TcpListener,
}

impl<'a> Host<'a> {
    fn open<E>(place: Place<'a>) -> Result<Self, NodeRendezvousError<E>> {
        let address = (place.config.master.as_str(), place.config.port);
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
        Ok(Self { place, listener })
    }

    fn welcome_all<E: fmt::Display>(
        self,
        prepare: impl FnOnce(Option<&str>) -> Result<PreparedRun, E>,
        waiting: &mut Waiting<'_>,
        report: &mut dyn FnMut(&str),
    ) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
        let Place { config, smaller, .. } = self.place;
        let mut joined = self.gather(waiting, report)?;
        let latest = latest(self.place.session.into_iter().chain(sessions(&joined))).cloned();
        let run = latest.as_ref().map(|session| session.run.as_str());
        let prepared = prepare(run).map_err(|error| {
            refuse(&mut joined, &format!("node 0 could not prepare the run: {error}"));
            NodeRendezvousError::Prepare(error)
        })?;
        let secret = Key::random().map_err(io_error(0, "draw random numbers"))?;
        let session = next(latest.as_ref(), &prepared, &joined);
        let (config, smaller) = (config.clone(), smaller.to_vec());
        let meeting = Meeting { config, prepared, smaller, session };
        send_run(&mut joined, &meeting, &secret).map_err(io_error(0, "send the plan"))?;
        let names: Vec<String> =
            std::iter::once(host()).chain(joined.iter().map(JoinedNode::name)).collect();
        let peers = peer_connections(&meeting, &secret, &names)
            .connect(&self.listener, &[], report)
            .map_err(NodeRendezvousError::connecting(0))?;
        let ranks = meeting.ranks();
        let remotes = (1..).zip(joined).map(|(place, node)| {
            let name = node.name();
            RemoteNode::new(node.node, ranks.first_of(place), name, node.channel)
        });
        let connections = NodeConnections { remotes: remotes.collect(), peers };
        met(meeting, connections)
    }

    /// Waits for all other nodes, and returns them in their order.
    fn gather<E>(
        &self,
        waiting: &mut Waiting<'_>,
        report: &mut dyn FnMut(&str),
    ) -> Result<Vec<JoinedNode>, NodeRendezvousError<E>> {
        let NodeConfig { nodes, ref master, port, ref token, .. } = *self.place.config;
        let acceptor = Acceptor::open(&self.listener, token);
        let mut acceptor = acceptor.map_err(io_error(0, "listen"))?;
        let mut joined: Vec<Option<JoinedNode>> = (1..nodes).map(|_| None).collect();
        let began = Instant::now();
        report(&format!("waiting for {} at {master}:{port} ...", missing(&joined)));
        loop {
            if let Some(connection) = acceptor.accept(waiting.next_look(), report) {
                if let Some((node, hello)) = JoinedNode::receive(connection) {
                    self.register(node, &hello, &mut joined, report)?;
                }
            } else if (waiting.is_called_off)() {
                let error = NodeRendezvousError::CalledOff { node: 0 };
                refuse(joined.iter_mut().flatten(), "node 0 was asked to stop");
                return Err(error);
            } else if self.may_go_on_without_more(&joined, began, waiting) {
                report(&format!("going on without {}", missing(&joined)));
                return Ok(joined.into_iter().flatten().collect());
            } else if waiting.is_over() {
                let (missing, waited) = (missing(&joined), waiting.longest);
                return Err(NodeRendezvousError::Missing { node: 0, missing, waited });
            }
            // One may have died while it waited for the others.
            for place in &mut joined {
                drop(place.take_if(|node| node.has_left()));
            }
            if joined.iter().all(Option::is_some) {
                return Ok(joined.into_iter().flatten().collect());
            }
        }
    }

    /// Whether the run, which has begun, continues with these machines alone: at the deadline, or
    /// soon where all are back that took part before.
    fn may_go_on_without_more(
        &self,
        joined: &[Option<JoinedNode>],
        began: Instant,
        waiting: &Waiting<'_>,
    ) -> bool {
        let Place { smaller, session, .. } = self.place;
        let others = || joined.iter().flatten();
        let sessions = others().filter_map(|node| node.session.as_ref());
        let Some(before) = latest(session.into_iter().chain(sessions)) else { return false };
        let is_back = |number: &u32| *number == 0 || others().any(|node| node.node == *number);
        let are_back = before.present.iter().all(is_back) && began.elapsed() >= RETURN_TIME;
        (are_back || waiting.is_over()) && plan_for(smaller, 1 + others().count()).is_some()
    }

    /// Adds a node. A second one of the same number is refused, and so is one that comes from
    /// another run or an older meeting; one that does not fit ends the rendezvous for all.
    fn register<E>(
        &self,
        mut node: JoinedNode,
        hello: &Hello,
        joined: &mut [Option<JoinedNode>],
        report: &mut dyn FnMut(&str),
    ) -> Result<(), NodeRendezvousError<E>> {
        let Place { config, plan, session, .. } = self.place;
        if let Some(why) = objection(hello, plan, config.nodes) {
            let reason = format!("node {} ({}): {why}", hello.node, node.name());
            refuse(joined.iter_mut().flatten().chain([&mut node]), &reason);
            return Err(NodeRendezvousError::Refused { reason });
        }
        // `objection` has checked the number.
        let at = hello.node as usize - 1;
        let late = hello.session.as_ref().and_then(|theirs| {
            let others = joined.iter().flatten().filter_map(|node| node.session.as_ref());
            is_late(theirs, session, latest(others))
        });
        let taken = joined[at].as_mut().filter(|earlier| !earlier.has_left());
        let taken = taken.map(|node| format!("it has already joined: {}", node.name()));
        match late.or(taken) {
            Some(why) => {
                let why = format!("node {} {}", hello.node, why.trim_start_matches("it "));
                report(&format!("warning: {} was refused: {why}", node.name()));
                refuse([&mut node], &why);
            }
            None => joined[at] = Some(node),
        }
        Ok(())
    }
}

/// Where these nodes come from.
fn sessions(joined: &[JoinedNode]) -> impl Iterator<Item = &Session> {
    joined.iter().filter_map(|node| node.session.as_ref())
}

/// The newest of some sessions, the first of equals.
fn latest<'a>(sessions: impl Iterator<Item = &'a Session>) -> Option<&'a Session> {
    sessions.reduce(|a, b| {
        let age = |session: &Session| (session.meeting, session.restarts.len());
        if age(b) > age(a) { b } else { a }
    })
}

/// The session that begins when all have met.
fn next(latest: Option<&Session>, prepared: &PreparedRun, joined: &[JoinedNode]) -> Session {
    let present = std::iter::once(0).chain(joined.iter().map(|node| node.node)).collect();
    let meeting = latest.map_or(0, |session| session.meeting) + 1;
    let restarts = latest.map_or_else(Vec::new, |session| session.restarts.clone());
    Session { run: prepared.folders.id.clone(), meeting, restarts, present }
}

/// Why a node that comes from `theirs` does not belong to what node 0, which comes from `own`, and
/// those who came before it continue. Where a node 0 has died while the machines met, some of them
/// are a meeting ahead.
fn is_late(theirs: &Session, own: Option<&Session>, others: Option<&Session>) -> Option<String> {
    let oldest = own.map(|own| own.meeting).or(others.map(|it| it.meeting.saturating_sub(1)));
    let run = own.or(others).map(|session| &session.run);
    if run.is_some_and(|run| *run != theirs.run) {
        return Some(format!("it continues another run, {}", theirs.run));
    }
    oldest.filter(|oldest| theirs.meeting < *oldest).map(|_| {
        let meeting = theirs.meeting;
        format!(
            "it comes from meeting {meeting} of this run's machines, and they have met again since"
        )
    })
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
fn send_run(joined: &mut [JoinedNode], meeting: &Meeting, secret: &Key) -> io::Result<()> {
    let nodes: Vec<_> = joined.iter().map(|node| (node.address, node.name())).collect();
    for node in joined {
        let (nodes, host, secret) = (nodes.clone(), host(), *secret.bytes());
        let Meeting { prepared, session, .. } = meeting.clone();
        let welcome = Welcome { prepared, secret, nodes, host, session };
        node.channel.send_all(&Answer::Welcome(Box::new(welcome)), CONNECT_TIMEOUT)?;
    }
    Ok(())
}

/// The run as this machine takes part in it, and the connections to the others.
fn met<E>(
    meeting: Meeting,
    connections: NodeConnections,
) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
    let Some(plan) = meeting.plan().cloned() else {
        let reason = format!("there is no plan for {} machines", meeting.session.present.len());
        return Err(NodeRendezvousError::Refused { reason });
    };
    let prepared = PreparedRun { plan, ..meeting.prepared.clone() };
    Ok((prepared, Nodes::new(meeting, connections)))
}

/// A node that has connected to node 0.
struct JoinedNode {
    node: u32,
    host: String,
    address: SocketAddr,
    session: Option<Session>,
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
        let (host, session) = (hello.host.clone(), hello.session.clone());
        Some((Self { node: hello.node, host, address, session, channel }, hello))
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
    meeting: &Meeting,
    secret: &Key,
    names: &'a [String],
) -> PeerConnections<'a> {
    let NodeRanks { place, ranks_per_node } = meeting.ranks();
    let nodes = meeting.session.present.len() as u32;
    let key = run_key(&meeting.config.token, secret, &meeting.prepared);
    PeerConnections { node: place, nodes, ranks_per_node, key, names }
}

/// Another node: connects to node 0, and waits there for the run.
fn join_host<E>(
    place: Place<'_>,
    waiting: &mut Waiting<'_>,
    report: &mut dyn FnMut(&str),
) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
    let Place { config, plan, smaller, session } = place;
    let node = config.node;
    let (stream, keys) = connect_to_host(config, waiting, report)?;
    let addresses = stream.local_addr().and_then(|own| Ok((own.ip(), stream.peer_addr()?)));
    let (own_ip, host_address) = addresses.map_err(io_error(node, "tell its own address"))?;
    let listener = TcpListener::bind((own_ip, 0)).map_err(io_error(node, "listen"))?;
    let port = listener.local_addr().map_err(io_error(node, "listen"))?.port();
    let channel = Channel::authenticated(stream, &keys);
    let mut channel = channel.map_err(io_error(node, "use its connection"))?;
    let hello = hello(config, plan, port, session);
    channel.send_all(&hello, CONNECT_TIMEOUT).map_err(io_error(node, "join node 0"))?;
    let welcome = receive_run(&mut channel, node, plan, waiting)?;
    let Welcome { prepared, secret, nodes, host, session } = welcome;
    let prepared = PreparedRun { plan: compatibility::adapted(&prepared.plan, plan), ..prepared };
    let (config, smaller) = (config.clone(), smaller.to_vec());
    let meeting = Meeting { config, prepared, smaller, session };
    let first = format!("{host} at {}", host_address.ip());
    let (addresses, names): (Vec<_>, Vec<_>) =
        std::iter::once((host_address, first.clone())).chain(nodes).unzip();
    let ranks = meeting.ranks();
    let lower = addresses.get(..ranks.place as usize).unwrap_or_default();
    let peers = peer_connections(&meeting, &Key::new(secret), &names)
        .connect(&listener, lower, report)
        .map_err(NodeRendezvousError::connecting(node))?;
    let remotes = vec![RemoteNode::new(0, ranks.first_of(0), first, channel)];
    met(meeting, NodeConnections { remotes, peers })
}

/// A connection to node 0, which may be started later.
fn connect_to_host<E>(
    config: &NodeConfig,
    waiting: &mut Waiting<'_>,
    report: &mut dyn FnMut(&str),
) -> Result<(TcpStream, SessionKeys), NodeRendezvousError<E>> {
    let NodeConfig { node, ref master, port, ref token, .. } = *config;
    let address = format!("{master}:{port}");
    report(&format!("node {node} connects to node 0 at {address} ..."));
    let connected = loop {
        let (host, purpose) = ((master.as_str(), port), Purpose::Node(node));
        match connect_authenticated(host, token, purpose, waiting.next_look()) {
            Err(HandshakeError::Io(_)) if (waiting.is_called_off)() => {
                return Err(NodeRendezvousError::CalledOff { node });
            }
            Err(HandshakeError::Io(_)) if !waiting.is_over() => {}
            connected => break connected,
        }
    };
    connected.map_err(|error| match error {
        HandshakeError::Unauthenticated => NodeRendezvousError::Unauthenticated { address },
        HandshakeError::OtherVersion => {
            let reason = format!("node 0 at {address} is another version of ddprun");
            NodeRendezvousError::Refused { reason }
        }
        HandshakeError::Io(_) => {
            let (missing, waited) = (format!("node 0 at {address}"), waiting.longest);
            NodeRendezvousError::Missing { node, missing, waited }
        }
    })
}

/// How this node introduces itself.
fn hello(config: &NodeConfig, plan: &Plan, port: u16, session: Option<&Session>) -> Hello {
    let NodeConfig { node, nodes, .. } = *config;
    let (plan, session) = (serde_json::to_value(plan).unwrap_or_default(), session.cloned());
    Hello { version: build_id().to_owned(), node, nodes, host: host(), port, plan, session }
}

/// Waits for the run.
fn receive_run<E>(
    channel: &mut Channel,
    node: u32,
    plan: &Plan,
    waiting: &mut Waiting<'_>,
) -> Result<Welcome, NodeRendezvousError<E>> {
    let until = Instant::now() + plan.distributed.timeout + PREPARE_TIMEOUT;
    loop {
        match channel.receive_one(LOOK_INTERVAL) {
            Ok(Answer::Welcome(welcome)) => return Ok(*welcome),
            Ok(Answer::Refused(reason)) => return Err(NodeRendezvousError::Refused { reason }),
            Err(error) if error.kind() == ErrorKind::TimedOut && Instant::now() < until => {
                if (waiting.is_called_off)() {
                    return Err(NodeRendezvousError::CalledOff { node });
                }
            }
            Err(source) => return Err(io_error(node, "receive the plan from node 0")(source)),
        }
    }
}

fn io_error<E>(node: u32, what: &'static str) -> impl Fn(io::Error) -> NodeRendezvousError<E> {
    move |source| NodeRendezvousError::Io { node, what: what.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(run: &str, meeting: u32, restarts: usize) -> Session {
        let restarts = vec!["a rank died".to_owned(); restarts];
        Session { run: run.to_owned(), meeting, restarts, present: vec![0, 1] }
    }

    #[test]
    fn a_machine_that_was_lost_for_a_meeting_or_comes_from_another_run_is_refused() {
        let (first, second) = (session("r", 1, 1), session("r", 2, 2));
        assert_eq!(is_late(&second, Some(&second), None), None);
        let late = is_late(&first, Some(&second), None).unwrap();
        assert!(late.starts_with("it comes from meeting 1 of this run's machines"), "{late}");
        let other = is_late(&session("s", 2, 0), Some(&second), None).unwrap();
        assert_eq!(other, "it continues another run, s");
    }

    #[test]
    fn a_new_node_0_takes_the_word_of_the_others_the_newest_first() {
        let [first, second, third] = [1, 2, 3].map(|meeting| session("r", meeting, 1));
        assert_eq!(is_late(&first, None, None), None);
        // One of them may have met a node 0 that died meanwhile.
        assert_eq!(is_late(&second, None, Some(&third)), None);
        assert!(is_late(&first, None, Some(&third)).is_some());
        let longer = session("r", 2, 2);
        assert_eq!(latest([&first, &second, &longer].into_iter()), Some(&longer));
        assert_eq!(latest([&second].into_iter()), Some(&second));
    }
}
