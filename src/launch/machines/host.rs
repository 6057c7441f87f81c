//! Node 0 of a meeting, which the others connect to.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use crate::launch::PreparedRun;
use crate::launch::error_report::host;
use crate::launch::machines::compatibility;
use crate::launch::machines::greeting::{
    Answer, Hello, NodeRendezvousError, Place, Welcome, io_error, met, peer_connections,
};
use crate::launch::machines::meeting::{
    Meeting, NodeConfig, Session, is_late, latest, next, plan_for,
};
use crate::launch::machines::nodes::{NodeConnections, Nodes, RemoteNode};
use crate::launch::machines::waiting::Waiting;
use crate::plan::Plan;
use crate::transport::acceptor::{Acceptor, AuthenticatedConnection};
use crate::transport::auth::{Key, Purpose, SentKey};
use crate::transport::build_id::build_id;
use crate::transport::channel::Channel;
use crate::transport::handshake::HANDSHAKE_TIMEOUT;
use crate::transport::peer_connections::CONNECT_TIMEOUT;

/// Time for machines to come back that did not take part before, once all others are there.
const RETURN_TIME: Duration = Duration::from_secs(5);

/// Node 0, which the others connect to.
pub(in crate::launch) struct Host<'a> {
    place: Place<'a>,
    listener: TcpListener,
}

impl<'a> Host<'a> {
    pub(in crate::launch) fn open<E>(place: Place<'a>) -> Result<Self, NodeRendezvousError<E>> {
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

    pub(in crate::launch) fn welcome_all<E: fmt::Display>(
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
        let session = next(latest.as_ref(), &prepared, joined.iter().map(|node| node.node));
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
        let (nodes, host, secret) = (nodes.clone(), host(), SentKey(secret.clone()));
        let Meeting { prepared, session, .. } = meeting.clone();
        let welcome = Welcome { prepared, secret, nodes, host, session };
        node.channel.send_all(&Answer::Welcome(Box::new(welcome)), CONNECT_TIMEOUT)?;
    }
    Ok(())
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
