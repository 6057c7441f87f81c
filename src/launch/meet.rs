//! The parents of several machines find each other, agree on the plan, and connect their ranks.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::launch::Peer;
use crate::launch::door::{Door, Guest};
use crate::launch::greet::{PATIENCE, Unmet, greet};
use crate::launch::join::Made;
use crate::launch::nodes::{Neighbour, Nodes, Place};
use crate::launch::report::host;
use crate::launch::seal::{Key, Purpose, Session};
use crate::launch::wire::Channel;
use crate::plan::Plan;
use crate::units::Rank;

/// Longest wait of a node for node 0 to make the run, beside that for the other nodes: data may have to be generated.
const MAKE_PATIENCE: Duration = Duration::from_mins(15);
/// Longest wait for all ranks to be connected.
const CONNECT_PATIENCE: Duration = Duration::from_mins(1);
/// Time between two tries to reach a node.
const RETRY: Duration = Duration::from_millis(100);
/// All nodes must be the same program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Why the nodes did not meet.
#[derive(Debug, thiserror::Error)]
pub enum MeetError<E> {
    /// This is node 0, and it could not make the run. The other nodes were told.
    #[error(transparent)]
    Make(E),
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
    /// Somebody did not come.
    #[error("node {node} waited {:.0} s for {missing} in vain", waited.as_secs_f64())]
    Missing {
        /// This node.
        node: u32,
        /// Who is missing.
        missing: String,
        /// How long.
        waited: Duration,
    },
    /// What listens at the address does not hold the token.
    #[error("what listens at {address} does not prove that it has the token of this run")]
    Stranger {
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

/// What a node says first.
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

/// What it is answered.
#[derive(Serialize, Deserialize)]
enum Answer {
    Welcome(Box<Welcome>),
    Refused(String),
}

#[derive(Serialize, Deserialize)]
struct Welcome {
    made: Made,
    /// Of this meeting alone: ranks of another do not get in.
    secret: [u8; 32],
    /// Address and name of each node but the first.
    nodes: Vec<(SocketAddr, String)>,
    /// Name of node 0.
    host: String,
}

/// Meets the other nodes. Node 0 makes the run by `make` once all are here, and hands it to the others, which use it if
/// their own plan is the same but for threads; `say` hears what a person at the terminal should know.
///
/// # Errors
///
/// As [`MeetError`].
pub fn meet<E: fmt::Display>(
    place: &Place,
    plan: &Plan,
    make: impl FnOnce() -> Result<Made, E>,
    say: &mut dyn FnMut(&str),
) -> Result<(Made, Nodes), MeetError<E>> {
    if place.node == 0 {
        Host::open(place)?.receive(plan, make, say)
    } else {
        join(place, plan, say)
    }
}

/// Node 0 at its address.
struct Host<'a> {
    place: &'a Place,
    listener: TcpListener,
}

impl<'a> Host<'a> {
    fn open<E>(place: &'a Place) -> Result<Self, MeetError<E>> {
        let address = (place.master.as_str(), place.port);
        let listener = TcpListener::bind(address).map_err(|source| {
            let (master, port) = address;
            let remedy = match source.kind() {
                ErrorKind::AddrInUse => "; choose another with `--master-port`",
                ErrorKind::AddrNotAvailable => "; node 0 must be the machine of `--master-addr`",
                _ => "",
            };
            MeetError::Io { node: 0, what: format!("listen at {master}:{port}{remedy}"), source }
        })?;
        Ok(Self { place, listener })
    }

    fn receive<E: fmt::Display>(
        self,
        plan: &Plan,
        make: impl FnOnce() -> Result<Made, E>,
        say: &mut dyn FnMut(&str),
    ) -> Result<(Made, Nodes), MeetError<E>> {
        let mut arrived = self.gather(plan, say)?;
        let refuse = |arrived: &mut [Arrived], reason: &str| {
            for node in arrived {
                // Whoever left meanwhile needs no answer.
                let _ = node.channel.send_all(&Answer::Refused(reason.to_owned()), PATIENCE);
            }
        };
        let made = match make() {
            Ok(made) => made,
            Err(error) => {
                refuse(&mut arrived, &format!("node 0 could not prepare the run: {error}"));
                return Err(MeetError::Make(error));
            }
        };
        let secret = Key::random().map_err(io_error(0, "draw random numbers"))?;
        let nodes: Vec<_> = arrived.iter().map(|node| (node.address, node.name())).collect();
        for node in &mut arrived {
            let (made, nodes) = (made.clone(), nodes.clone());
            let welcome = Welcome { made, secret: *secret.bytes(), nodes, host: host() };
            let sent = node.channel.send_all(&Answer::Welcome(Box::new(welcome)), CONNECT_PATIENCE);
            sent.map_err(io_error(0, "hand over the plan"))?;
        }
        let key = run_key(&self.place.token, &secret, &made);
        let names: Vec<String> =
            std::iter::once(host()).chain(nodes.into_iter().map(|n| n.1)).collect();
        let mesh =
            Mesh { place: self.place, key, names: &names, ranks: ranks_per_node(plan, self.place) };
        let peers = mesh.connect(&self.listener, &[], say)?;
        let neighbours = arrived.into_iter().map(|node| {
            let name = node.name();
            Neighbour::new(node.node, name, node.channel)
        });
        let nodes = Nodes::new(
            (0, mesh.ranks),
            neighbours.collect(),
            peers,
            made.1.clone(),
            plan.distributed.timeout,
        );
        Ok((made, nodes))
    }

    /// All other nodes, in their order.
    fn gather<E>(
        &self,
        plan: &Plan,
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<Arrived>, MeetError<E>> {
        let Place { nodes, ref master, port, .. } = *self.place;
        let door = Door::open(&self.listener, &self.place.token);
        let mut door = door.map_err(io_error(0, "listen"))?;
        let waited = plan.distributed.timeout;
        let until = Instant::now() + waited;
        let mut here: Vec<Option<Arrived>> = (1..nodes).map(|_| None).collect();
        let names = |here: &[Option<Arrived>]| {
            let missing = (1..).zip(here).filter(|(_, node)| node.is_none());
            let names: Vec<String> = missing.map(|(node, _)| format!("node {node}")).collect();
            names.join(", ")
        };
        say(&format!("waiting for {} at {master}:{port} ...", names(&here)));
        while here.iter().any(Option::is_none) {
            let Some(guest) = door.wait(until, say) else {
                return Err(MeetError::Missing { node: 0, missing: names(&here), waited });
            };
            let Some((mut came, hello)) = Arrived::hear(guest) else { continue };
            let place = (hello.node as usize).checked_sub(1).and_then(|at| here.get_mut(at));
            let refused = match objection(&hello, plan, nodes) {
                Some(why) => Some(why),
                None => match &place {
                    Some(Some(earlier)) if !earlier.has_left() => {
                        let why =
                            format!("node {} is here already: {}", hello.node, earlier.name());
                        let _ = came.channel.send_all(&Answer::Refused(why.clone()), PATIENCE);
                        say(&format!("warning: {} was refused: {why}", came.name()));
                        continue;
                    }
                    _ => None,
                },
            };
            if let Some(why) = refused {
                let reason = format!("node {} ({}): {why}", hello.node, came.name());
                let all = here.iter_mut().flatten().chain(std::iter::once(&mut came));
                for node in all {
                    let _ = node.channel.send_all(&Answer::Refused(reason.clone()), PATIENCE);
                }
                return Err(MeetError::Refused { reason });
            }
            if let Some(place) = place {
                *place = Some(came);
            }
        }
        Ok(here.into_iter().flatten().collect())
    }
}

/// A node that has come to node 0.
struct Arrived {
    node: u32,
    host: String,
    address: SocketAddr,
    channel: Channel,
}

impl Arrived {
    fn hear(guest: Guest) -> Option<(Self, Hello)> {
        let mut channel = Channel::sealed(guest.stream, guest.session).ok()?;
        let hello: Hello = channel.receive_one(PATIENCE).ok()?;
        if guest.purpose != Purpose::Node(hello.node) {
            return None;
        }
        let address = SocketAddr::new(guest.address, hello.port);
        Some((Self { node: hello.node, host: hello.host.clone(), address, channel }, hello))
    }

    fn name(&self) -> String {
        format!("{} at {}", self.host, self.address.ip())
    }

    /// Whether it waits no longer; it has nothing to say before it is answered.
    fn has_left(&self) -> bool {
        use rustix::net::{RecvFlags, recv};
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recv(&self.channel, &mut [0_u8][..], flags) != Err(rustix::io::Errno::AGAIN)
    }
}

/// Why a node does not belong to this run.
fn objection(hello: &Hello, plan: &Plan, nodes: u32) -> Option<String> {
    if hello.version != VERSION {
        return Some(format!("it is ddprun {}, and node 0 is {VERSION}", hello.version));
    }
    if hello.nodes != nodes {
        return Some(format!("it counts {} nodes, and node 0 counts {nodes}", hello.nodes));
    }
    if hello.node == 0 || hello.node >= nodes {
        return Some(format!("there is no such node among {nodes}"));
    }
    let Ok(theirs) = serde_json::from_value::<Plan>(hello.plan.clone()) else {
        return Some("its plan cannot be read".to_owned());
    };
    let ours = serde_json::to_value(for_machine_of(plan, &theirs)).unwrap_or_default();
    difference("", &ours, &hello.plan)
}

/// `plan` with what may differ between machines as `theirs` has it. It changes no bit.
fn for_machine_of(plan: &Plan, theirs: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.distributed.threads_per_rank = theirs.distributed.threads_per_rank;
    plan.data.num_workers = theirs.data.num_workers;
    plan.data.prefetch_factor = theirs.data.prefetch_factor;
    plan
}

/// The first place where two plans differ, in words.
fn difference(at: &str, ours: &serde_json::Value, theirs: &serde_json::Value) -> Option<String> {
    use serde_json::Value::{Array, Object};
    let inside = |key: &str| if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
    match (ours, theirs) {
        (Object(a), Object(b)) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)));
            let null = serde_json::Value::Null;
            keys.into_iter().find_map(|key| {
                difference(&inside(key), a.get(key).unwrap_or(&null), b.get(key).unwrap_or(&null))
            })
        }
        (Array(a), Array(b)) if a.len() == b.len() => (0..)
            .zip(a.iter().zip(b))
            .find_map(|(n, (a, b)): (usize, _)| difference(&inside(&n.to_string()), a, b)),
        _ => (ours != theirs)
            .then(|| format!("in its plan `{at}` is {theirs}, and in that of node 0 it is {ours}")),
    }
}

fn ranks_per_node(plan: &Plan, place: &Place) -> u32 {
    plan.distributed.world_size.get() / place.nodes
}

/// The key of this run's ranks: another run with the same token has another.
fn run_key(token: &Key, secret: &Key, made: &Made) -> Key {
    token.derive("ranks of a run", &[secret.bytes(), made.1.id.as_bytes()])
}

/// Another node: goes to node 0, and waits there for the run.
fn join<E>(
    place: &Place,
    plan: &Plan,
    say: &mut dyn FnMut(&str),
) -> Result<(Made, Nodes), MeetError<E>> {
    let (node, timeout) = (place.node, plan.distributed.timeout);
    let address = format!("{}:{}", place.master, place.port);
    say(&format!("node {node} goes to node 0 at {address} ..."));
    let until = Instant::now() + timeout;
    let (stream, session) =
        reach((place.master.as_str(), place.port), &place.token, Purpose::Node(node), until)
            .map_err(|unmet| match unmet {
                Unmet::Unproved => MeetError::Stranger { address: address.clone() },
                Unmet::Io(_) => {
                    let missing = format!("node 0 at {address}");
                    MeetError::Missing { node, missing, waited: timeout }
                }
            })?;
    let here = stream.local_addr().map_err(io_error(node, "tell its own address"))?.ip();
    let there = stream.peer_addr().map_err(io_error(node, "tell the address of node 0"))?;
    let listener = TcpListener::bind((here, 0)).map_err(io_error(node, "listen"))?;
    let port = listener.local_addr().map_err(io_error(node, "listen"))?.port();
    let mut channel =
        Channel::sealed(stream, session).map_err(io_error(node, "use its connection"))?;
    let hello = Hello {
        version: VERSION.to_owned(),
        node,
        nodes: place.nodes,
        host: host(),
        port,
        plan: serde_json::to_value(plan).unwrap_or_default(),
    };
    channel.send_all(&hello, CONNECT_PATIENCE).map_err(io_error(node, "greet node 0"))?;
    let answer = channel.receive_one(timeout + MAKE_PATIENCE);
    let welcome = match answer.map_err(io_error(node, "receive the plan from node 0"))? {
        Answer::Welcome(welcome) => *welcome,
        Answer::Refused(reason) => return Err(MeetError::Refused { reason }),
    };
    let Welcome { made, secret, nodes, host: host_of_0 } = welcome;
    let made = (for_machine_of(&made.0, plan), made.1, made.2);
    let key = run_key(&place.token, &Key::new(secret), &made);
    let name_of_0 = format!("{host_of_0} at {}", there.ip());
    let (addresses, names): (Vec<_>, Vec<_>) =
        std::iter::once((there, name_of_0.clone())).chain(nodes).unzip();
    let mesh = Mesh { place, key, names: &names, ranks: ranks_per_node(plan, place) };
    let peers = mesh.connect(&listener, &addresses[..node as usize], say)?;
    let neighbours = vec![Neighbour::new(0, name_of_0, channel)];
    let nodes = Nodes::new((node, mesh.ranks), neighbours, peers, made.1.clone(), timeout);
    Ok((made, nodes))
}

/// Connects until the other end has proved itself. Only one that cannot is an error before `until`.
fn reach(
    address: impl ToSocketAddrs,
    key: &Key,
    purpose: Purpose,
    until: Instant,
) -> Result<(TcpStream, Session), Unmet> {
    loop {
        let met = TcpStream::connect(&address).map_err(Unmet::Io).and_then(|mut stream| {
            let session = greet(&mut stream, key, purpose)?;
            Ok((stream, session))
        });
        match met {
            // Not there yet, or too busy with others.
            Err(Unmet::Io(_)) if Instant::now() < until => std::thread::sleep(RETRY),
            met => return met,
        }
    }
}

/// The connections between the ranks of all nodes.
struct Mesh<'a> {
    place: &'a Place,
    key: Key,
    /// Of all nodes.
    names: &'a [String],
    ranks: u32,
}

impl Mesh<'_> {
    /// For each rank of this node, those that it talks to. This node connects to `lower` ones, and higher ones to it.
    fn connect<E>(
        &self,
        listener: &TcpListener,
        lower: &[SocketAddr],
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<Vec<Peer>>, MeetError<E>> {
        let node = self.place.node;
        let mut peers = self.within().map_err(io_error(node, "connect its own ranks"))?;
        // Open first, so that nobody waits for us while we connect.
        let mut door = Door::open(listener, &self.key).map_err(io_error(node, "listen"))?;
        let until = Instant::now() + CONNECT_PATIENCE;
        for (other, address) in (0..).zip(lower) {
            for (from, to) in self.pairs(other) {
                let purpose = Purpose::Ranks { from: from.0, to: to.0 };
                let (stream, session) = reach(address, &self.key, purpose, until)
                    .map_err(|unmet| unreached(node, *address, unmet))?;
                self.keep(&mut peers, (from, to), stream, session);
            }
        }
        let mut expected: Vec<(Rank, Rank)> =
            (node + 1..self.place.nodes).flat_map(|other| self.pairs(other)).collect();
        while !expected.is_empty() {
            let Some(guest) = door.wait(until, say) else {
                let (_, rank) = expected[0];
                let missing = format!("rank {rank} and {} others", expected.len() - 1);
                return Err(MeetError::Missing { node, missing, waited: CONNECT_PATIENCE });
            };
            let Purpose::Ranks { from, to } = guest.purpose else { continue };
            let pair = (Rank(to), Rank(from));
            let Some(at) = expected.iter().position(|other| *other == pair) else { continue };
            expected.swap_remove(at);
            self.keep(&mut peers, pair, guest.stream, guest.session);
        }
        Ok(peers)
    }

    /// Each rank of this node with each of another.
    fn pairs(&self, other: u32) -> impl Iterator<Item = (Rank, Rank)> + use<> {
        let (mine, theirs, n) = (self.place.node * self.ranks, other * self.ranks, self.ranks);
        (mine..mine + n).flat_map(move |mine| {
            (theirs..theirs + n).map(move |theirs| (Rank(mine), Rank(theirs)))
        })
    }

    fn keep(
        &self,
        peers: &mut [Vec<Peer>],
        (own, other): (Rank, Rank),
        stream: TcpStream,
        session: Session,
    ) {
        let address = self.names.get((other.0 / self.ranks) as usize).cloned().unwrap_or_default();
        // A delay of small messages is the only loss without it.
        let _ = stream.set_nodelay(true);
        let peer = Peer { rank: other, address, socket: stream.into(), session: Some(session) };
        peers[(own.0 % self.ranks) as usize].push(peer);
    }

    /// The ranks of this node among themselves.
    fn within(&self) -> io::Result<Vec<Vec<Peer>>> {
        let first = self.place.node * self.ranks;
        let mut peers: Vec<Vec<Peer>> = (0..self.ranks).map(|_| Vec::new()).collect();
        for a in 0..self.ranks {
            for b in a + 1..self.ranks {
                let (to_b, to_a) = UnixStream::pair()?;
                for (own, other, socket) in [(a, b, to_b), (b, a, to_a)] {
                    let (rank, address) = (Rank(first + other), "this machine".to_owned());
                    let socket = socket.into();
                    peers[own as usize].push(Peer { rank, address, socket, session: None });
                }
            }
        }
        Ok(peers)
    }
}

fn unreached<E>(node: u32, address: SocketAddr, unmet: Unmet) -> MeetError<E> {
    match unmet {
        Unmet::Unproved => MeetError::Stranger { address: address.to_string() },
        Unmet::Io(source) => MeetError::Io { node, what: format!("reach {address}"), source },
    }
}

fn io_error<E>(node: u32, what: &'static str) -> impl Fn(io::Error) -> MeetError<E> {
    move |source| MeetError::Io { node, what: what.to_owned(), source }
}
