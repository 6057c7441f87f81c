//! The parents of several machines find each other, agree on the plan, and connect their ranks.
//!
//! ```text
//! node k ──Hello {plan}──▶ node 0      after a handshake that proves the token (`transport::handshake`)
//! node k ◀─Welcome {run}── node 0      once all nodes have joined; or Refused
//! node k ─────────────────▶ node i     for i < k: a connection from k's first rank to i's
//! ```
//!
//! No port stays open once the ranks are connected. After a failure the machines meet again in the
//! same way (`join_again`): each says from which run and rendezvous it comes, if from any. One from
//! an older rendezvous is refused; one from none takes the place of a parent that has died.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::failpoint;
use crate::launch::error_report::host;
use crate::launch::machines::compatibility;
use crate::launch::machines::host::Host;
use crate::launch::machines::joining::{
    Answer, Hello, JOIN, JoinWait, LOOK_INTERVAL, NodeRendezvousError, Participant, RECEIVE,
    STOPPED, Welcome, io_error, peer_connections,
};
use crate::launch::machines::nodes::{NodeConnections, Nodes, RemoteNode};
use crate::launch::machines::rendezvous::{NodeConfig, Rendezvous, RestartHistory, Session};
use crate::launch::machines::wait_list::{WaitList, has_left};
use crate::launch::{NoRun, PrepareError, PreparedRun};
use crate::plan::Plan;
use crate::transport::auth::Purpose;
use crate::transport::build_id;
use crate::transport::channel::Channel;
use crate::transport::handshake::HandshakeError;
use crate::transport::peer_connections::{CONNECT_TIMEOUT, connect_authenticated};
use crate::transport::record::SessionKeys;

/// Longest wait of a node for node 0 to prepare the run, which may have to generate data, after all
/// nodes have joined.
const PREPARE_TIMEOUT: Duration = Duration::from_mins(15);
/// Longest time for which a node 0 that refuses this node may still be leaving a rendezvous.
const PARTING_TIME: Duration = Duration::from_secs(5);
/// Failed operation of a node that came while the others train, if their run ends before they meet.
const LATE: &str = "take part in the run: it is over, or node 0 is gone";

/// Finds the other nodes. Node 0 prepares the run by `prepare` once all have joined, and sends it
/// to the others, which use it if their own plan is the same except for what may differ between
/// machines. `prepare` gets the id of the run that the others want to continue, if they have lost
/// the node 0 of before. `smaller` are the plans of fewer machines that the run may continue with,
/// if some do not come back. `report` gets lines for the terminal.
///
/// # Errors
///
/// See [`NodeRendezvousError`].
pub fn join_nodes<E: PrepareError>(
    config: &NodeConfig,
    plan: &Plan,
    smaller: &[Plan],
    prepare: impl FnOnce(Option<&str>) -> Result<PreparedRun, E>,
    report: &mut dyn FnMut(&str),
) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
    let longest = plan.distributed.timeout;
    let mut waiting =
        JoinWait { until: Instant::now() + longest, longest, is_called_off: &mut || false };
    let participant = Participant { config, plan, smaller, session: None };
    meet(participant, None, prepare, &mut waiting, report)
}

/// A failed rendezvous of machines that have met before.
pub(crate) type MeetAgainError = NodeRendezvousError<Infallible>;

/// Meets the other machines again, where nothing has failed, without messages.
///
/// # Errors
///
/// A machine does not come within `distributed.timeout`, or does not fit any more.
pub fn join_nodes_again(nodes: &mut Nodes) -> Result<(), MeetAgainError> {
    join_again(nodes, &RestartHistory::default(), &mut || false, &mut |_| ())
}

/// Connects the machines again, and puts the new connections into `nodes`. `past` is the history of
/// the run with the restart that comes now; node 0's history replaces it.
///
/// # Errors
///
/// A machine does not come within `distributed.timeout`, or does not fit any more.
pub(in crate::launch) fn join_again(
    nodes: &mut Nodes,
    past: &RestartHistory,
    is_called_off: &mut dyn FnMut() -> bool,
    report: &mut dyn FnMut(&str),
) -> Result<(), MeetAgainError> {
    let Rendezvous { config, prepared, smaller, session, .. } = nodes.rendezvous().clone();
    let session = Session { past: past.clone(), ..session };
    let prepared = PreparedRun { resume: true, ..prepared };
    let longest = prepared.plan.distributed.timeout;
    let mut wait_list = nodes.take_wait_list();
    let mut earlier = nodes.take_remotes();
    let node_0_stops = |earlier: &mut [RemoteNode]| {
        config.node != 0 && earlier.iter_mut().any(RemoteNode::calls_off)
    };
    let mut stops = || node_0_stops(&mut earlier) || is_called_off();
    let mut waiting =
        JoinWait { until: Instant::now() + longest, longest, is_called_off: &mut stops };
    let error = loop {
        let again = || Ok::<_, Infallible>(prepared.clone());
        let plan = &prepared.plan;
        let participant =
            Participant { config: &config, plan, smaller: &smaller, session: Some(&session) };
        let met = meet(participant, wait_list.take(), |_| again(), &mut waiting, report);
        match met {
            Ok((_, met)) => {
                *nodes = met;
                return Ok(());
            }
            // A machine may have died while the others met.
            Err(error) if error.may_pass() && !waiting.is_over() => {
                if (waiting.is_called_off)() {
                    break NodeRendezvousError::CalledOff { node: config.node };
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
            Err(error) => break error,
        }
    };
    let is_over = node_0_stops(&mut earlier);
    nodes.put_back(earlier);
    Err(if is_over { NodeRendezvousError::Refused(NoRun::unfit(STOPPED)) } else { error })
}

/// [`join_nodes`], also for machines that have met before; node 0 may have a wait list open.
fn meet<E: PrepareError>(
    participant: Participant<'_>,
    wait_list: Option<WaitList>,
    prepare: impl FnOnce(Option<&str>) -> Result<PreparedRun, E>,
    waiting: &mut JoinWait<'_>,
    report: &mut dyn FnMut(&str),
) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
    if participant.config.node == 0 {
        Host::open(participant, wait_list)?.welcome_all(prepare, waiting, report)
    } else {
        join_host(participant, waiting, report)
    }
}

/// Joins node 0 as another node; again, if the machines part before their ranks are connected. A
/// node that comes while they connect loses its connection, or meets a node 0 with the key of that
/// rendezvous.
fn join_host<E>(
    participant: Participant<'_>,
    waiting: &mut JoinWait<'_>,
    report: &mut dyn FnMut(&str),
) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
    let node = participant.config.node;
    // Since when node 0 lets it in no more, and the first sign of that.
    let mut parted: Option<(Instant, NodeRendezvousError<E>)> = None;
    loop {
        let until = parted.as_ref().map_or(waiting.until, |(since, _)| *since + PARTING_TIME);
        let (until, is_called_off) = (until.min(waiting.until), &mut *waiting.is_called_off);
        let mut this_time = JoinWait { until, longest: waiting.longest, is_called_off };
        let began = Instant::now();
        match (join_host_once(participant, &mut this_time, report), parted.take()) {
            (Err(NodeRendezvousError::BrokenOff { .. }), _) => waiting.restart(),
            (Err(error), earlier) if error.may_pass_soon() => {
                let earlier = earlier.filter(|_| began.elapsed() < PARTING_TIME);
                let (since, first) = earlier.unwrap_or_else(|| (Instant::now(), error));
                if since.elapsed() >= PARTING_TIME {
                    return Err(first);
                }
                parted = Some((since, first));
            }
            (Err(NodeRendezvousError::Missing { .. }), Some((_, first))) => return Err(first),
            (joined, _) => return joined,
        }
        std::thread::sleep(LOOK_INTERVAL);
        if (waiting.is_called_off)() {
            return Err(NodeRendezvousError::CalledOff { node });
        }
    }
}

/// One attempt of [`join_host`].
fn join_host_once<E>(
    participant: Participant<'_>,
    waiting: &mut JoinWait<'_>,
    report: &mut dyn FnMut(&str),
) -> Result<(PreparedRun, Nodes), NodeRendezvousError<E>> {
    let Participant { config, plan, smaller, session } = participant;
    let node = config.node;
    let (stream, keys) = connect_to_host(config, waiting, report)?;
    let addresses = stream.local_addr().and_then(|own| Ok((own.ip(), stream.peer_addr()?)));
    let (own_ip, host_address) = addresses.map_err(io_error(node, "tell its own address"))?;
    let listener = TcpListener::bind((own_ip, 0)).map_err(io_error(node, "listen"))?;
    let port = listener.local_addr().map_err(io_error(node, "listen"))?.port();
    let channel = Channel::authenticated(stream, keys);
    let mut channel = channel.map_err(io_error(node, "use its connection"))?;
    let hello = hello(config, plan, port, session);
    channel.send_all(&hello, CONNECT_TIMEOUT).map_err(io_error(node, JOIN))?;
    let welcome = receive_run(&mut channel, node, plan, (&mut *waiting, &mut *report))?;
    let Welcome { prepared, secret, nodes, host, session } = welcome;
    let prepared = PreparedRun { plan: compatibility::adapted(&prepared.plan, plan), ..prepared };
    let (config, smaller) = (config.clone(), smaller.to_vec());
    let rendezvous = Rendezvous { config, prepared, smaller, session };
    let first = format!("{host} at {}", host_address.ip());
    let (addresses, names): (Vec<_>, Vec<_>) =
        std::iter::once((host_address, first.clone())).chain(nodes).unzip();
    let ranks = rendezvous.ranks();
    let lower = addresses.get(..ranks.place as usize).unwrap_or_default();
    failpoint::reach("machines.connect");
    let mut is_hopeless = || has_left(&channel) || (waiting.is_called_off)();
    let peers = peer_connections(&rendezvous, &secret.0, &names)
        .connect(&listener, lower, report, &mut is_hopeless)
        .map_err(NodeRendezvousError::connecting(node))?;
    let remotes = vec![RemoteNode::new(0, ranks.first_of(0), first, channel)];
    Nodes::met(rendezvous, NodeConnections { remotes, peers, wait_list: None })
}

/// A connection to node 0, which may be started later.
fn connect_to_host<E>(
    config: &NodeConfig,
    waiting: &mut JoinWait<'_>,
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
            let why = format!("node 0 at {address} is another version of ddprun");
            NodeRendezvousError::Refused(NoRun::unfit(why))
        }
        HandshakeError::Io(_) => {
            let (missing, waited) = (format!("node 0 at {address}"), waiting.longest);
            NodeRendezvousError::Missing { node, missing, waited }
        }
    })
}

/// The introduction of this node.
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
    (waiting, report): (&mut JoinWait<'_>, &mut dyn FnMut(&str)),
) -> Result<Welcome, NodeRendezvousError<E>> {
    let longest = plan.distributed.timeout + PREPARE_TIMEOUT;
    let (mut until, mut what) = (Instant::now() + longest, RECEIVE);
    loop {
        match channel.receive_one(LOOK_INTERVAL) {
            Ok(Answer::Welcome(welcome)) => return Ok(*welcome),
            Ok(Answer::Wait) => {
                if what != LATE {
                    report("the others train; this machine takes part after a checkpoint");
                }
                (until, what) = (Instant::now() + longest, LATE);
            }
            Ok(Answer::Refused(why)) => return Err(NodeRendezvousError::Refused(why)),
            Err(error) if error.kind() == ErrorKind::TimedOut && Instant::now() < until => {
                if (waiting.is_called_off)() {
                    return Err(NodeRendezvousError::CalledOff { node });
                }
            }
            Err(source) => return Err(io_error(node, what)(source)),
        }
    }
}
