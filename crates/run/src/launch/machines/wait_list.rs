//! The port of node 0, and the nodes that wait there: all others before a rendezvous, or machines
//! that were away while the rest trains.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use crate::launch::NoRun;
use crate::launch::machines::compatibility;
use crate::launch::machines::joining::{Answer, Hello};
use crate::launch::machines::rendezvous::{NodeConfig, Rendezvous, Session, is_late, latest};
use crate::plan::Plan;
use crate::transport::acceptor::{Acceptor, AuthenticatedConnection};
use crate::transport::auth::Purpose;
use crate::transport::build_id;
use crate::transport::channel::Channel;
use crate::transport::handshake::HANDSHAKE_TIMEOUT;

/// Time between two messages to those who wait.
const WORD_INTERVAL: Duration = Duration::from_secs(10);
/// Time between two looks at those who have not introduced themselves yet.
const HELLO_INTERVAL: Duration = Duration::from_millis(20);

/// Nodes that wait for node 0. When it is dropped, their connections end.
pub(in crate::launch) struct WaitList {
    listener: TcpListener,
    acceptor: Acceptor,
    /// Connections that hold the token and have not introduced themselves: a silent one holds up
    /// nobody.
    arriving: Vec<Arriving>,
    /// Node 1 and so on, if they are here.
    joined: Vec<Option<JoinedNode>>,
    /// When they were last told to wait.
    told: Instant,
}

impl WaitList {
    pub(in crate::launch) fn open(listener: TcpListener, config: &NodeConfig) -> io::Result<Self> {
        let acceptor = Acceptor::open(&listener, &config.token)?;
        let joined = (1..config.nodes).map(|_| None).collect();
        Ok(Self { listener, acceptor, arriving: Vec::new(), joined, told: Instant::now() })
    }

    /// Returns the nodes that are here, in their order; the listener listens on.
    pub(in crate::launch) fn close(self) -> (TcpListener, Vec<JoinedNode>) {
        (self.listener, self.joined.into_iter().flatten().collect())
    }

    /// The next node that comes before `until`, if one does.
    pub(in crate::launch) fn accept(
        &mut self,
        until: Instant,
        report: &mut dyn FnMut(&str),
    ) -> Option<(JoinedNode, Hello)> {
        loop {
            let look = until.min(Instant::now() + HELLO_INTERVAL);
            let wait = if self.arriving.is_empty() { until } else { look };
            let came = self.acceptor.accept(wait, report).and_then(Arriving::new);
            self.arriving.extend(came);
            let node = self.introduced();
            if node.is_some() || Instant::now() >= until {
                return node;
            }
        }
    }

    /// Returns the first node that has introduced itself, and forgets connections that are gone or
    /// silent for too long.
    fn introduced(&mut self) -> Option<(JoinedNode, Hello)> {
        let mut at = 0;
        while at < self.arriving.len() {
            match self.arriving[at].hello() {
                Ok(None) => at += 1,
                Err(()) => drop(self.arriving.swap_remove(at)),
                Ok(Some(hello)) => {
                    let arrived = self.arriving.swap_remove(at);
                    if let Some(node) = arrived.into_node(&hello) {
                        return Some((node, hello));
                    }
                }
            }
        }
        None
    }

    /// Lets a node in whose plan fits, where node 0 comes from the rendezvous `own`. A second one
    /// of its number is refused, and so is one from another run or an older rendezvous: the reason.
    pub(in crate::launch) fn admit(
        &mut self,
        mut node: JoinedNode,
        own: Option<&Session>,
    ) -> Result<(), String> {
        let late = node.session.as_ref().and_then(|theirs| {
            let others = self.nodes_here().filter_map(|node| node.session.as_ref());
            is_late(theirs, own, latest(others))
        });
        // `objection` has checked the number.
        let place = &mut self.joined[node.node as usize - 1];
        let taken = place.as_mut().filter(|earlier| !earlier.has_left());
        let taken = taken.map(|node| format!("it has already joined: {}", node.name()));
        if let Some(why) = late.or(taken) {
            let why = format!("node {} {}", node.node, why.trim_start_matches("it "));
            refuse([&mut node], &NoRun::unfit(&why));
            return Err(format!("{} was refused: {why}", node.name()));
        }
        *place = Some(node);
        Ok(())
    }

    /// Admits nodes that come while the group of `rendezvous` trains, and tells them to wait;
    /// refuses those that do not fit.
    pub(in crate::launch) fn look(&mut self, rendezvous: &Rendezvous) {
        let mut is_due = self.told.elapsed() >= WORD_INTERVAL;
        while let Some((mut node, hello)) = self.accept(Instant::now(), &mut |_| ()) {
            match objection(&hello, &rendezvous.prepared.plan, rendezvous.config.nodes) {
                Some(why) => {
                    let reason = format!("node {} ({}): {why}", hello.node, node.name());
                    refuse([&mut node], &NoRun::unfit(reason));
                }
                // A refused node has been told why.
                None => is_due |= self.admit(node, Some(&rendezvous.session)).is_ok(),
            }
        }
        self.forget_who_has_left();
        if is_due {
            self.told = Instant::now();
            for node in self.joined.iter_mut().flatten() {
                // One that cannot be told has left.
                let _ = node.channel.send(&Answer::Wait);
            }
        }
    }

    /// Forgets nodes that died while they waited for the others.
    pub(in crate::launch) fn forget_who_has_left(&mut self) {
        for place in &mut self.joined {
            drop(place.take_if(|node| node.has_left()));
        }
    }

    /// Numbers of the nodes that are here.
    pub(in crate::launch) fn nodes(&self) -> impl Iterator<Item = u32> {
        self.nodes_here().map(|node| node.node)
    }

    /// Sessions of the nodes that are here.
    pub(in crate::launch) fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.nodes_here().filter_map(|node| node.session.as_ref())
    }

    pub(in crate::launch) fn is_complete(&self) -> bool {
        self.joined.iter().all(Option::is_some)
    }

    /// "node 1, node 3"
    pub(in crate::launch) fn missing(&self) -> String {
        let missing = (1..).zip(&self.joined).filter(|(_, node)| node.is_none());
        let names: Vec<String> = missing.map(|(node, _)| format!("node {node}")).collect();
        names.join(", ")
    }

    /// Refuses all who are here.
    pub(in crate::launch) fn refuse_all(&mut self, why: &NoRun) {
        refuse(self.joined.iter_mut().flatten(), why);
    }

    fn nodes_here(&self) -> impl Iterator<Item = &JoinedNode> {
        self.joined.iter().flatten()
    }
}

/// Refuses nodes. One that has left gets no answer.
pub(in crate::launch) fn refuse<'a>(
    nodes: impl IntoIterator<Item = &'a mut JoinedNode>,
    why: &NoRun,
) {
    for node in nodes {
        let _ = node.channel.send_all(&Answer::Refused(why.clone()), HANDSHAKE_TIMEOUT);
    }
}

/// A connection whose other end holds the token.
struct Arriving {
    channel: Channel,
    address: IpAddr,
    purpose: Purpose,
    since: Instant,
}

impl Arriving {
    fn new(connection: AuthenticatedConnection) -> Option<Self> {
        let AuthenticatedConnection { stream, address, purpose, keys } = connection;
        let channel = Channel::authenticated(stream, keys).ok()?;
        Some(Self { channel, address, purpose, since: Instant::now() })
    }

    /// Returns the first message, if it has come; an error if none will come.
    fn hello(&mut self) -> Result<Option<Hello>, ()> {
        let mut messages = self.channel.receive::<Hello>().map_err(drop)?.into_iter();
        match messages.next() {
            None if self.channel.is_closed() => Err(()),
            None if self.since.elapsed() >= HANDSHAKE_TIMEOUT => Err(()),
            hello => Ok(hello),
        }
    }

    fn into_node(self, hello: &Hello) -> Option<JoinedNode> {
        let Hello { node, port, ref host, ref session, .. } = *hello;
        let address = SocketAddr::new(self.address, port);
        let (host, session, channel) = (host.clone(), session.clone(), self.channel);
        (self.purpose == Purpose::Node(node)).then_some(JoinedNode {
            node,
            host,
            address,
            session,
            channel,
        })
    }
}

/// A node that has connected to node 0.
pub(in crate::launch) struct JoinedNode {
    pub(in crate::launch) node: u32,
    host: String,
    pub(in crate::launch) address: SocketAddr,
    pub(in crate::launch) session: Option<Session>,
    pub(in crate::launch) channel: Channel,
}

impl JoinedNode {
    pub(in crate::launch) fn name(&self) -> String {
        format!("{} at {}", self.host, self.address.ip())
    }

    /// True if it has closed its connection.
    pub(in crate::launch) fn has_left(&self) -> bool {
        has_left(&self.channel)
    }
}

/// True if the other end has closed its connection, and all that it sent was read.
pub(in crate::launch) fn has_left(channel: &Channel) -> bool {
    use rustix::io::Errno;
    use rustix::net::{RecvFlags, recv};
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(channel, &mut [0_u8][..], flags) {
        Ok((read, _)) => read == 0,
        Err(errno) => !matches!(errno, Errno::AGAIN | Errno::INTR),
    }
}

/// Returns the reason why a node does not belong to this run, if any.
pub(in crate::launch) fn objection(hello: &Hello, plan: &Plan, nodes: u32) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::auth::Key;
    use crate::transport::peer_connections::connect_authenticated;

    #[test]
    fn a_machine_that_joins_and_says_nothing_holds_up_no_other() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (master, port, token) =
            ("127.0.0.1".to_owned(), address.port(), Key::random().unwrap());
        let config = NodeConfig { node: 0, nodes: 3, master, port, token: token.clone() };
        let mut wait_list = WaitList::open(listener, &config).unwrap();
        let until = Instant::now() + Duration::from_mins(1);
        let join = |node| {
            let (stream, keys) =
                connect_authenticated(address, &token, Purpose::Node(node), until).unwrap();
            Channel::authenticated(stream, keys).unwrap()
        };
        let (_silent, mut other) = (join(1), join(2));
        let hello = Hello {
            version: build_id().to_owned(),
            node: 2,
            nodes: 3,
            host: "b".to_owned(),
            port: 1,
            plan: serde_json::Value::Null,
            session: None,
        };
        let began = Instant::now();
        other.send_all(&hello, HANDSHAKE_TIMEOUT).unwrap();
        let (node, _) = wait_list.accept(until, &mut |_| ()).unwrap();
        assert_eq!((node.node, node.has_left()), (2, false));
        assert!(began.elapsed() < HANDSHAKE_TIMEOUT / 2, "{:?}", began.elapsed());
        drop(other);
        while !node.has_left() {
            assert!(Instant::now() < until);
        }
        // It takes no one else for the silent one's place, and looks no longer than is asked for.
        let began = Instant::now();
        assert!(wait_list.accept(began + HELLO_INTERVAL, &mut |_| ()).is_none());
        assert!(began.elapsed() < HANDSHAKE_TIMEOUT / 2, "{:?}", began.elapsed());
    }
}
