//! The parents of several machines find each other, agree on the plan, and connect their ranks.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::launch::error_report::host;
use crate::launch::join::Made;
use crate::launch::machines::nodes::{Neighbour, Nodes, Place};
use crate::launch::machines::peer_connections::{CONNECT_PATIENCE, PeerConnections, reach};
use crate::plan::{DistributedPlan, Plan};
use crate::transport::acceptor::{Acceptor, Guest};
use crate::transport::auth::{Key, Purpose, Session};
use crate::transport::build_id::identity;
use crate::transport::channel::Channel;
use crate::transport::handshake::{PATIENCE, Unmet};

/// Longest wait of a node for node 0 to make the run, beside that for the other nodes: data may have to be generated.
const MAKE_PATIENCE: Duration = Duration::from_mins(15);

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
    /// A node did not come.
    #[error("node {node} waited {:.0} s, but {missing} did not come", waited.as_secs_f64())]
    Missing {
        /// This node.
        node: u32,
        /// Who is missing.
        missing: String,
        /// How long.
        waited: Duration,
    },
    /// What listens at the address does not hold the token.
    #[error("whatever listens at {address} does not prove that it has the token of this run")]
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
        let made = make().map_err(|error| {
            refuse(&mut arrived, &format!("node 0 could not prepare the run: {error}"));
            MeetError::Make(error)
        })?;
        let secret = Key::random().map_err(io_error(0, "draw random numbers"))?;
        welcome(&mut arrived, &made, &secret).map_err(io_error(0, "hand over the plan"))?;
        let names: Vec<String> =
            std::iter::once(host()).chain(arrived.iter().map(Arrived::name)).collect();
        let key = run_key(&self.place.token, &secret, &made);
        let ranks = ranks_per_node(plan, self.place);
        let peer_connections = PeerConnections { place: self.place, key, names: &names, ranks };
        let peers = peer_connections.connect(&self.listener, &[], say)?;
        let neighbours = arrived.into_iter().map(|node| {
            let name = node.name();
            Neighbour::new(node.node, name, node.channel)
        });
        let (neighbours, timeout) = (neighbours.collect(), plan.distributed.timeout);
        let nodes = Nodes::new((0, ranks), neighbours, peers, made.1.clone(), timeout);
        Ok((made, nodes))
    }

    /// All other nodes, in their order.
    fn gather<E>(
        &self,
        plan: &Plan,
        say: &mut dyn FnMut(&str),
    ) -> Result<Vec<Arrived>, MeetError<E>> {
        let Place { nodes, ref master, port, .. } = *self.place;
        let acceptor = Acceptor::open(&self.listener, &self.place.token);
        let mut acceptor = acceptor.map_err(io_error(0, "listen"))?;
        let waited = plan.distributed.timeout;
        let until = Instant::now() + waited;
        let mut here: Vec<Option<Arrived>> = (1..nodes).map(|_| None).collect();
        say(&format!("waiting for {} at {master}:{port} ...", absent(&here)));
        while here.iter().any(Option::is_none) {
            let Some(guest) = acceptor.wait(until, say) else {
                return Err(MeetError::Missing { node: 0, missing: absent(&here), waited });
            };
            if let Some((came, hello)) = Arrived::hear(guest) {
                self.seat(came, &hello, plan, &mut here, say)?;
            }
        }
        Ok(here.into_iter().flatten().collect())
    }

    /// Gives a node its place. One whose place is taken is sent away; one that does not fit is the end for all.
    fn seat<E>(
        &self,
        mut came: Arrived,
        hello: &Hello,
        plan: &Plan,
        here: &mut [Option<Arrived>],
        say: &mut dyn FnMut(&str),
    ) -> Result<(), MeetError<E>> {
        if let Some(why) = objection(hello, plan, self.place.nodes) {
            let reason = format!("node {} ({}): {why}", hello.node, came.name());
            refuse(here.iter_mut().flatten().chain([&mut came]), &reason);
            return Err(MeetError::Refused { reason });
        }
        // `objection` has compared the number with those of the places.
        let place = &mut here[hello.node as usize - 1];
        match place {
            Some(earlier) if !earlier.has_left() => {
                let why = format!("node {} has already joined: {}", hello.node, earlier.name());
                say(&format!("warning: {} was refused: {why}", came.name()));
                refuse([&mut came], &why);
            }
            _ => *place = Some(came),
        }
        Ok(())
    }
}

/// "node 1, node 3"
fn absent(here: &[Option<Arrived>]) -> String {
    let absent = (1..).zip(here).filter(|(_, node)| node.is_none());
    let names: Vec<String> = absent.map(|(node, _)| format!("node {node}")).collect();
    names.join(", ")
}

/// Sends nodes away. Whoever left meanwhile needs no answer.
fn refuse<'a>(nodes: impl IntoIterator<Item = &'a mut Arrived>, reason: &str) {
    for node in nodes {
        let _ = node.channel.send_all(&Answer::Refused(reason.to_owned()), PATIENCE);
    }
}

/// Hands the run to all nodes, with what they need to reach each other.
fn welcome(arrived: &mut [Arrived], made: &Made, secret: &Key) -> io::Result<()> {
    let nodes: Vec<_> = arrived.iter().map(|node| (node.address, node.name())).collect();
    for node in arrived {
        let (made, nodes, host) = (made.clone(), nodes.clone(), host());
        let welcome = Welcome { made, secret: *secret.bytes(), nodes, host };
        node.channel.send_all(&Answer::Welcome(Box::new(welcome)), CONNECT_PATIENCE)?;
    }
    Ok(())
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
    if hello.version != identity() {
        return Some(format!("it is ddprun {}, but node 0 is {}", hello.version, identity()));
    }
    if hello.nodes != nodes {
        return Some(format!("it was told of {} nodes, but node 0 of {nodes}", hello.nodes));
    }
    if hello.node == 0 || hello.node >= nodes {
        return Some(format!("the nodes are numbered from 0 to {}", nodes.saturating_sub(1)));
    }
    let Ok(theirs) = serde_json::from_value::<Plan>(hello.plan.clone()) else {
        return Some("its plan cannot be read".to_owned());
    };
    if let Some(why) = other_devices(&plan.distributed, &theirs.distributed) {
        return Some(why);
    }
    let ours = serde_json::to_value(for_machine_of(plan, &theirs)).unwrap_or_default();
    difference("", &ours, &hello.plan)
}

/// Devices that do not go together: on some machines GPUs and on others CPUs, other numbers of them, or ranks that share a GPU
/// here and there not.
fn other_devices(ours: &DistributedPlan, theirs: &DistributedPlan) -> Option<String> {
    let kind = |plan: &DistributedPlan| if plan.is_on_gpus() { "on GPUs" } else { "on the CPU" };
    let (our_kind, their_kind) = (kind(ours), kind(theirs));
    if our_kind != their_kind {
        return Some(format!(
            "it computes {their_kind}, but node 0 {our_kind}; CUDA_VISIBLE_DEVICES= on all machines hides all GPUs"
        ));
    }
    let (our_ranks, their_ranks) = (ours.local_world(), theirs.local_world());
    if our_ranks != their_ranks {
        return Some(format!(
            "its number of ranks is {their_ranks}, but node 0's is {our_ranks}: set it with `--nproc-per-node`"
        ));
    }
    let shares = |plan: &DistributedPlan| {
        if plan.nccl_shares_a_gpu() { "share a GPU" } else { "have a GPU each" }
    };
    (shares(ours) != shares(theirs))
        .then(|| format!("its ranks {}, but those of node 0 {}", shares(theirs), shares(ours)))
}

/// `plan` with what may differ between machines as `theirs` has it: nothing that changes a bit. Which of its GPUs a machine
/// uses is its own affair.
fn for_machine_of(plan: &Plan, theirs: &Plan) -> Plan {
    let mut plan = plan.clone();
    if plan.distributed.is_on_gpus() && theirs.distributed.is_on_gpus() {
        plan.distributed.devices.clone_from(&theirs.distributed.devices);
    }
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
            .then(|| format!("in its plan `{at}` is {theirs}, but in that of node 0 it is {ours}")),
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
    let (stream, session) = reach_first(place, timeout, say)?;
    let addresses = stream.local_addr().and_then(|here| Ok((here.ip(), stream.peer_addr()?)));
    let (here, there) = addresses.map_err(io_error(node, "tell its own address"))?;
    let listener = TcpListener::bind((here, 0)).map_err(io_error(node, "listen"))?;
    let port = listener.local_addr().map_err(io_error(node, "listen"))?.port();
    let channel = Channel::sealed(stream, session);
    let mut channel = channel.map_err(io_error(node, "use its connection"))?;
    let Welcome { made, secret, nodes, host } = apply(&mut channel, place, plan, port)?;
    let made = (for_machine_of(&made.0, plan), made.1, made.2);
    let key = run_key(&place.token, &Key::new(secret), &made);
    let first = format!("{host} at {}", there.ip());
    let (addresses, names): (Vec<_>, Vec<_>) =
        std::iter::once((there, first.clone())).chain(nodes).unzip();
    let ranks = ranks_per_node(plan, place);
    let peer_connections = PeerConnections { place, key, names: &names, ranks };
    let lower = addresses.get(..node as usize).unwrap_or_default();
    let peers = peer_connections.connect(&listener, lower, say)?;
    let neighbours = vec![Neighbour::new(0, first, channel)];
    let nodes = Nodes::new((node, ranks), neighbours, peers, made.1.clone(), timeout);
    Ok((made, nodes))
}

/// A connection to node 0, which may be started later.
fn reach_first<E>(
    place: &Place,
    waited: Duration,
    say: &mut dyn FnMut(&str),
) -> Result<(TcpStream, Session), MeetError<E>> {
    let node = place.node;
    let address = format!("{}:{}", place.master, place.port);
    say(&format!("node {node} connects to node 0 at {address} ..."));
    let at = (place.master.as_str(), place.port);
    let met = reach(at, &place.token, Purpose::Node(node), Instant::now() + waited);
    met.map_err(|unmet| match unmet {
        Unmet::Unproved => MeetError::Stranger { address },
        Unmet::Io(_) => {
            MeetError::Missing { node, missing: format!("node 0 at {address}"), waited }
        }
    })
}

/// Says who this node is, and waits for the run.
fn apply<E>(
    channel: &mut Channel,
    place: &Place,
    plan: &Plan,
    port: u16,
) -> Result<Welcome, MeetError<E>> {
    let Place { node, nodes, .. } = *place;
    let plan_as_json = serde_json::to_value(plan).unwrap_or_default();
    let (version, host) = (identity().to_owned(), host());
    let hello = Hello { version, node, nodes, host, port, plan: plan_as_json };
    channel.send_all(&hello, CONNECT_PATIENCE).map_err(io_error(node, "handshake node 0"))?;
    let answer = channel.receive_one(plan.distributed.timeout + MAKE_PATIENCE);
    match answer.map_err(io_error(node, "receive the plan from node 0"))? {
        Answer::Welcome(welcome) => Ok(*welcome),
        Answer::Refused(reason) => Err(MeetError::Refused { reason }),
    }
}

pub(in crate::launch) fn io_error<E>(
    node: u32,
    what: &'static str,
) -> impl Fn(io::Error) -> MeetError<E> {
    move |source| MeetError::Io { node, what: what.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::BackendPlan;
    use crate::units::WorldSize;

    fn distributed(devices: &[&str], nodes: u32) -> DistributedPlan {
        let world = WorldSize::new(devices.len() as u32 * nodes).unwrap();
        let devices: Vec<&&str> = devices.iter().cycle().take(world.count()).collect();
        let backend = BackendPlan::Nccl { mapping: None };
        serde_json::from_value(json!({
            "world_size": world, "nodes": nodes, "devices": devices, "threads_per_rank": 1, "backend": backend,
            "bucket_cap": 1, "first_bucket_cap": 1, "overlap": true, "find_unused_parameters": false,
            "timeout": Duration::from_secs(1),
        }))
        .unwrap()
    }

    #[test]
    fn machines_with_and_without_gpus_do_not_go_together_and_each_uses_gpus_of_its_own() {
        let ours = distributed(&["cuda:0", "cuda:1"], 2);
        let told = |theirs: &[&str]| other_devices(&ours, &distributed(theirs, 2));
        assert_eq!(told(&["cuda:0", "cuda:1"]), None);
        assert_eq!(told(&["cuda:3", "cuda:2"]), None, "which of its GPUs is its own affair");
        let cpus = told(&["cpu", "cpu"]).unwrap();
        assert!(cpus.starts_with("it computes on the CPU, but node 0 on GPUs"), "{cpus}");
        let fewer = told(&["cuda:0"]).unwrap();
        assert!(fewer.starts_with("its number of ranks is 1, but node 0's is 2"), "{fewer}");
        let shared = told(&["cuda:0", "cuda:0"]).unwrap();
        assert_eq!(shared, "its ranks share a GPU, but those of node 0 have a GPU each");
    }

    #[test]
    fn the_first_number_that_differs_is_named_with_its_place() {
        let ours = json!({ "name": "a", "optimizer": { "lr": 0.1, "betas": [0.9, 0.999] } });
        let told = |theirs: serde_json::Value| difference("", &ours, &theirs);
        assert_eq!(told(ours.clone()), None);
        assert_eq!(
            told(json!({ "name": "a", "optimizer": { "lr": 0.1, "betas": [0.9, 0.95] } })).unwrap(),
            "in its plan `optimizer.betas.1` is 0.95, but in that of node 0 it is 0.999"
        );
        assert_eq!(
            told(json!({ "name": "a", "optimizer": { "betas": [0.9, 0.999] } })).unwrap(),
            "in its plan `optimizer.lr` is null, but in that of node 0 it is 0.1"
        );
        let more =
            json!({ "name": "a", "optimizer": { "lr": 0.1, "betas": [0.9, 0.999] }, "x": 1 });
        assert_eq!(told(more).unwrap(), "in its plan `x` is 1, but in that of node 0 it is null");
    }
}
