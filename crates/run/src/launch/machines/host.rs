//! Node 0 of a rendezvous, which the others connect to.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::launch::error_report::host;
use crate::launch::machines::joining::{
    Answer, Hello, JoinWait, NodeRendezvousError, Participant, STOPPED, Welcome, io_error,
    peer_connections,
};
use crate::launch::machines::nodes::{NodeConnections, Nodes, RemoteNode};
use crate::launch::machines::rendezvous::{
    NodeConfig, Rendezvous, latest as latest_session, next, plan_for,
};
use crate::launch::machines::wait_list::{JoinedNode, WaitList, objection, refuse};
use crate::launch::{NoRun, PrepareError, PreparedRun};
use crate::transport::Peer;
use crate::transport::auth::{Key, SentKey};
use crate::transport::peer_connections::CONNECT_TIMEOUT;

/// Time for absent machines to come back once all others are there.
const RETURN_TIME: Duration = Duration::from_secs(5);

/// Node 0, which the others connect to.
pub(in crate::launch) struct Host<'a> {
    participant: Participant<'a>,
    wait_list: WaitList,
}

impl<'a> Host<'a> {
    /// Takes over `wait_list` if it is open already; otherwise listens.
    pub(in crate::launch) fn open<E>(
        participant: Participant<'a>,
        wait_list: Option<WaitList>,
    ) -> Result<Self, NodeRendezvousError<E>> {
        if let Some(wait_list) = wait_list {
            return Ok(Self { participant, wait_list });
        }
        let NodeConfig { ref master, port, .. } = *participant.config;
        let listener = listen(master, port).map_err(|source| {
            let remedy = match source.kind() {
                ErrorKind::AddrInUse => "; choose another with `--master-port`",
                ErrorKind::AddrNotAvailable => "; node 0 must be the machine of `--master-addr`",
                _ => "",
            };
            let what = format!("listen at {master}:{port}{remedy}");
            NodeRendezvousError::Io { node: 0, what, source }
        })?;
        let wait_list =
            WaitList::open(listener, participant.config).map_err(io_error(0, "listen"))?;
        Ok(Self { participant, wait_list })
    }

    pub(in crate::launch) fn welcome_all<E: PrepareError>(
        mut self,
        prepare: impl FnOnce(Option<&str>) -> Result<PreparedRun, E>,
        waiting: &mut JoinWait<'_>,
        report: &mut dyn FnMut(&str),
    ) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
        self.gather(waiting, report)?;
        let Participant { config, smaller, session, .. } = self.participant;
        let latest = latest_session(session.into_iter().chain(self.wait_list.sessions())).cloned();
        let run = latest.as_ref().map(|session| session.run.as_str());
        let prepared = prepare(run).map_err(|error| {
            self.wait_list.refuse_all(&NoRun::of("node 0", &error));
            NodeRendezvousError::Prepare(error)
        })?;
        let (rendezvous, listener, joined, peers) = loop {
            let latest =
                latest_session(session.into_iter().chain(self.wait_list.sessions())).cloned();
            let (listener, mut joined) = self.wait_list.close();
            let secret = Key::random().map_err(io_error(0, "draw random numbers"))?;
            let session = next(latest.as_ref(), &prepared, joined.iter().map(|node| node.node));
            let (config, smaller) = (config.clone(), smaller.to_vec());
            let prepared = prepared.clone();
            let rendezvous = Rendezvous { config, prepared, smaller, session };
            match connect_all(&mut joined, &rendezvous, &secret, &listener, waiting, report) {
                Ok(peers) => break (rendezvous, listener, joined, peers),
                Err(NodeRendezvousError::BrokenOff { .. }) => {}
                Err(error) => return Err(error),
            }
            // The others see their connections end, and come again.
            drop(joined);
            let wait_list =
                WaitList::open(listener, self.participant.config).map_err(io_error(0, "listen"))?;
            self = Self { participant: self.participant, wait_list };
            waiting.restart();
            self.gather(waiting, report)?;
        };
        let ranks = rendezvous.ranks();
        let remotes = (1..).zip(joined).map(|(index, node)| {
            let name = node.name();
            RemoteNode::new(node.node, ranks.first_of(index), name, node.channel)
        });
        let remotes = remotes.collect();
        let is_open = rendezvous.session.present.len() < rendezvous.config.nodes as usize;
        let wait_list = is_open.then(|| WaitList::open(listener, &rendezvous.config)).transpose();
        let wait_list = wait_list.map_err(io_error(0, "listen"))?;
        Nodes::met(rendezvous, NodeConnections { remotes, peers, wait_list })
    }

    /// Waits for all other nodes.
    fn gather<E>(
        &mut self,
        waiting: &mut JoinWait<'_>,
        report: &mut dyn FnMut(&str),
    ) -> Result<(), NodeRendezvousError<E>> {
        let NodeConfig { ref master, port, .. } = *self.participant.config;
        let began = Instant::now();
        report(&format!("waiting for {} at {master}:{port} ...", self.wait_list.missing()));
        self.wait_list.forget_who_has_left();
        while !self.wait_list.is_complete() {
            if let Some((node, hello)) = self.wait_list.accept(waiting.next_look(), report) {
                self.register(node, &hello, report)?;
            } else if (waiting.is_called_off)() {
                self.wait_list.refuse_all(&NoRun::unfit(STOPPED));
                return Err(NodeRendezvousError::CalledOff { node: 0 });
            } else if self.may_go_on_without_more(began, waiting) {
                report(&format!("going on without {}", self.wait_list.missing()));
                return Ok(());
            } else if waiting.is_over() {
                let (missing, waited) = (self.wait_list.missing(), waiting.longest);
                return Err(NodeRendezvousError::Missing { node: 0, missing, waited });
            }
            self.wait_list.forget_who_has_left();
        }
        Ok(())
    }

    /// True if the run, which has begun, continues with these machines alone: at the deadline, or
    /// earlier if all that took part before are back.
    fn may_go_on_without_more(&self, began: Instant, waiting: &JoinWait<'_>) -> bool {
        let Participant { smaller, session, .. } = self.participant;
        let before = latest_session(session.into_iter().chain(self.wait_list.sessions()));
        let Some(before) = before else { return false };
        let is_back =
            |number: &u32| *number == 0 || self.wait_list.nodes().any(|node| node == *number);
        let are_back = before.present.iter().all(is_back) && began.elapsed() >= RETURN_TIME;
        let machines = 1 + self.wait_list.nodes().count();
        (are_back || waiting.is_over()) && plan_for(smaller, machines).is_some()
    }

    /// Adds a node. One that does not fit ends the rendezvous for all.
    fn register<E>(
        &mut self,
        mut node: JoinedNode,
        hello: &Hello,
        report: &mut dyn FnMut(&str),
    ) -> Result<(), NodeRendezvousError<E>> {
        let Participant { config, plan, session, .. } = self.participant;
        if let Some(why) = objection(hello, plan, config.nodes) {
            let reason = format!("node {} ({}): {why}", hello.node, node.name());
            let why = NoRun::unfit(reason);
            self.wait_list.refuse_all(&why);
            refuse([&mut node], &why);
            return Err(NodeRendezvousError::Refused(why));
        }
        if let Err(why) = self.wait_list.admit(node, session) {
            report(&format!("warning: {why}"));
        }
        Ok(())
    }
}

/// Sends the run to all who have joined, and connects the ranks of this machine to theirs.
fn connect_all<E>(
    joined: &mut [JoinedNode],
    rendezvous: &Rendezvous,
    secret: &Key,
    listener: &TcpListener,
    waiting: &mut JoinWait<'_>,
    report: &mut dyn FnMut(&str),
) -> Result<Vec<Peer>, NodeRendezvousError<E>> {
    if send_run(joined, rendezvous, secret).is_err() {
        return Err(NodeRendezvousError::BrokenOff { node: 0 });
    }
    let names: Vec<String> =
        std::iter::once(host()).chain(joined.iter().map(JoinedNode::name)).collect();
    let mut is_hopeless = || joined.iter().any(JoinedNode::has_left) || (waiting.is_called_off)();
    let peers = peer_connections(rendezvous, secret, &names);
    let connected = peers.connect(listener, &[], report, &mut is_hopeless);
    connected.map_err(NodeRendezvousError::connecting(0))
}

/// Listens at the address where the other machines look for `master`.
fn listen(master: &str, port: u16) -> io::Result<TcpListener> {
    let named: Vec<SocketAddr> = (master, port).to_socket_addrs()?.collect();
    TcpListener::bind(listening_addresses(master, port, &named).as_slice())
}

/// Addresses at which the machine called `master` listens; `named` are those that it resolves its
/// own name to. Many systems have their own name in `/etc/hosts` as `127.0.1.1`, where no other
/// machine reaches them: then all addresses.
fn listening_addresses(master: &str, port: u16, named: &[SocketAddr]) -> Vec<SocketAddr> {
    if master.parse::<IpAddr>().is_ok() || master.starts_with("localhost") {
        return named.to_vec();
    }
    let is_reachable = |address: &&SocketAddr| !address.ip().is_loopback();
    let reachable: Vec<SocketAddr> = named.iter().filter(is_reachable).copied().collect();
    if !reachable.is_empty() {
        return reachable;
    }
    let has_ipv4 = named.iter().any(SocketAddr::is_ipv4);
    let all: IpAddr =
        if has_ipv4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    vec![SocketAddr::new(all, port)]
}

/// Sends the run to all nodes, with what they need to connect to each other.
fn send_run(joined: &mut [JoinedNode], rendezvous: &Rendezvous, secret: &Key) -> io::Result<()> {
    let nodes: Vec<_> = joined.iter().map(|node| (node.address, node.name())).collect();
    for node in joined {
        let (nodes, host, secret) = (nodes.clone(), host(), SentKey(secret.clone()));
        let Rendezvous { prepared, session, .. } = rendezvous.clone();
        let welcome = Welcome { prepared, secret, nodes, host, session };
        node.channel.send_all(&Answer::Welcome(Box::new(welcome)), CONNECT_TIMEOUT)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(master: &str, named: &[&str], expected: &[&str]) {
        let addresses = |all: &[&str]| -> Vec<SocketAddr> {
            all.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 29_500)).collect()
        };
        let found = listening_addresses(master, 29_500, &addresses(named));
        assert_eq!(found, addresses(expected), "{master} {named:?}");
    }

    #[test]
    fn a_machine_whose_name_it_takes_for_a_loopback_address_listens_where_others_reach_it() {
        check("node0", &["10.0.0.1"], &["10.0.0.1"]);
        check("node0", &["127.0.1.1"], &["0.0.0.0"]);
        check("node0", &["::1"], &["::"]);
        check("node0", &["::1", "127.0.1.1"], &["0.0.0.0"]);
        check("node0", &["127.0.1.1", "10.0.0.1"], &["10.0.0.1"]);
    }

    #[test]
    fn a_loopback_address_that_is_asked_for_is_taken() {
        check("127.0.0.1", &["127.0.0.1"], &["127.0.0.1"]);
        check("::1", &["::1"], &["::1"]);
        check("localhost", &["::1", "127.0.0.1"], &["::1", "127.0.0.1"]);
    }
}
