//! The other machines of a run, while its ranks train: heartbeats, and how the run ends.
//!
//! ```text
//! node k ◀─Heartbeat, Failed, Ended─▶ node 0
//! node k ◀─Next───────────────────── node 0      after a failure, if the run may start again
//! node k ──Read─────────────────────▶ node 0      each `Next`
//! ```
//!
//! These connections stay open until the machines have met again: node 0 may be stopped before.
//!
//! While some machines are away, node 0 keeps a wait list for them.

use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use serde::{Deserialize, Serialize};

use crate::collective::{self, Collective};
use crate::launch::error_report::clock;
use crate::launch::failure::Ended;
use crate::launch::machines::joining::NodeRendezvousError;
use crate::launch::machines::rendezvous::{NodeRanks, Rendezvous, RestartHistory};
use crate::launch::machines::wait_list::WaitList;
use crate::launch::{Failure, NoRun, Phase, PreparedRun};
use crate::plan::{OnOom, Plan};
use crate::transport::Peer;
use crate::transport::channel::{Channel, poll};
use crate::units::{Rank, WorldSize};
use crate::user_error::ExitCode;

/// Time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Longest silence of another node, unless `distributed.timeout` is shorter.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time between two polls that counts as watched: this process was suspended for the rest.
const MAX_POLL_GAP: Duration = Duration::from_secs(2);
/// Longest wait for the cause of a failure that is a consequence.
const CAUSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the other nodes to end, after this one ended well.
const END_TIMEOUT: Duration = Duration::from_mins(1);
/// Longest wait until the others have read why the run ended: what is unread when a connection is
/// closed may be lost.
const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for what node 0 decides after a failure: it may have to end its ranks first.
const DECISION_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time to send to a node that does not read.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);

/// A failure of a node's ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::launch) struct NodeFailure {
    pub(in crate::launch) failure: Box<Failure>,
    /// True if it follows from a failure of another node.
    pub(in crate::launch) is_consequence: bool,
}

/// A message between parents while their ranks run.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::launch) enum NodeMessage {
    /// This node is alive, and its first rank is there.
    Heartbeat { step: u64, phase: Phase },
    /// The ranks of this node have failed.
    Failed(NodeFailure),
    /// The ranks of this node have ended well; node 0's word counts for all.
    Ended(Outcome),
    /// Node 0's decision after a failure.
    Next(Decision),
    /// The decision was read.
    Read,
}

/// The end of ranks that have not failed; `None`: they have saved, to come back with those of more
/// machines.
pub(in crate::launch) type Outcome = Option<Ended>;

/// A decision after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::launch) enum Decision {
    /// All nodes meet again after this time.
    Again {
        /// Grows while the run makes no progress.
        wait: Duration,
    },
    /// All nodes meet again at once, and go on in smaller passes.
    Smaller,
    /// The run is over.
    Over,
}

/// Another node.
pub(in crate::launch) struct RemoteNode {
    node: u32,
    /// First rank of the node.
    first: Rank,
    /// Name and address, for messages.
    name: String,
    channel: Channel,
    /// When its last message arrived, in watched time.
    last_message: Duration,
    /// Step and phase of its first rank at that time.
    step: u64,
    phase: Phase,
    ended: Option<Outcome>,
    failed: Option<NodeFailure>,
    next: Option<Decision>,
    /// True if it has read the decision.
    has_read: bool,
}

impl RemoteNode {
    pub(in crate::launch) fn new(node: u32, first: Rank, name: String, channel: Channel) -> Self {
        Self {
            node,
            first,
            name,
            channel,
            last_message: Duration::ZERO,
            step: 0,
            phase: Phase::Starting,
            ended: None,
            failed: None,
            next: None,
            has_read: false,
        }
    }

    /// True if it has announced that no rendezvous follows.
    pub(in crate::launch) fn calls_off(&mut self) -> bool {
        // That its connection has ended says nothing: it may come again.
        drop(self.receive(Duration::ZERO, Duration::MAX));
        self.next == Some(Decision::Over)
    }

    /// True if it has reported the end of its ranks.
    fn has_concluded(&self) -> bool {
        self.ended.is_some() || self.failed.is_some()
    }

    /// Reads its messages, and returns why it is lost, if it is.
    fn receive(&mut self, watched: Duration, timeout: Duration) -> Option<String> {
        let messages = match self.channel.receive::<NodeMessage>() {
            Ok(messages) => messages,
            Err(error) => return Some(format!("receiving from it failed: {error}")),
        };
        if !messages.is_empty() {
            self.last_message = watched;
        }
        for message in messages {
            match message {
                NodeMessage::Heartbeat { step, phase } => (self.step, self.phase) = (step, phase),
                NodeMessage::Ended(outcome) => self.ended = Some(outcome),
                NodeMessage::Next(next) => self.next = Some(next),
                NodeMessage::Read => self.has_read = true,
                NodeMessage::Failed(failed) => {
                    // A later message may have the cause.
                    if !failed.is_consequence || self.failed.is_none() {
                        self.failed = Some(failed);
                    }
                }
            }
        }
        if self.channel.is_closed() {
            let why =
                "its connection ended: its ddprun was killed, or its machine or network failed";
            return Some(why.to_owned());
        }
        let silent = watched.saturating_sub(self.last_message);
        (silent >= timeout)
            .then(|| format!("nothing was heard from it for {:.0} s", silent.as_secs_f64()))
    }
}

/// The connections of a node, once all nodes have joined.
pub(in crate::launch) struct NodeConnections {
    /// To all other nodes for node 0, to node 0 for the others.
    pub(in crate::launch) remotes: Vec<RemoteNode>,
    /// Connections of this node's first rank to the first ranks of the others.
    pub(in crate::launch) peers: Vec<Peer>,
    /// Machines that do not take part; on node 0, if some do not.
    pub(in crate::launch) wait_list: Option<WaitList>,
}

/// The other nodes of a run: all of them for node 0, node 0 for the others.
pub struct Nodes {
    ranks: NodeRanks,
    connections: NodeConnections,
    rendezvous: Rendezvous,
    /// The plan of the machines that take part.
    plan: Plan,
    heartbeat_timeout: Duration,
    /// Time in which this process itself ran.
    watched: Duration,
    polled_at: Duration,
    /// When this node last sent a heartbeat, in watched time.
    last_heartbeat: Duration,
    /// Step and phase of the first rank of this machine.
    step: u64,
    phase: Phase,
}

impl Nodes {
    pub(in crate::launch) fn met<E>(
        rendezvous: Rendezvous,
        connections: NodeConnections,
    ) -> Result<(PreparedRun, Self), NodeRendezvousError<E>> {
        let Some(plan) = rendezvous.plan() else {
            let why = format!("there is no plan for {} machines", rendezvous.session.present.len());
            return Err(NodeRendezvousError::Refused(NoRun::unfit(why)));
        };
        let prepared = PreparedRun { plan: plan.clone(), ..rendezvous.prepared.clone() };
        let nodes = Self {
            ranks: rendezvous.ranks(),
            connections,
            heartbeat_timeout: plan.distributed.timeout.min(HEARTBEAT_TIMEOUT),
            rendezvous,
            plan,
            watched: Duration::ZERO,
            polled_at: clock(),
            last_heartbeat: Duration::ZERO,
            step: 0,
            phase: Phase::Starting,
        };
        Ok((prepared, nodes))
    }

    /// Number of this machine.
    pub fn node(&self) -> u32 {
        self.rendezvous.config.node
    }

    /// Index among the machines that take part, if some are lost.
    pub(in crate::launch) fn place(&self) -> u32 {
        self.ranks.place
    }

    /// The plan of the machines that take part.
    pub(in crate::launch) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// True if other machines take part.
    pub(in crate::launch) fn has_others(&self) -> bool {
        self.rendezvous.session.present.len() > 1
    }

    /// The rendezvous that these connections are from.
    pub(in crate::launch) fn rendezvous(&self) -> &Rendezvous {
        &self.rendezvous
    }

    pub(in crate::launch) fn past(&self) -> &RestartHistory {
        &self.rendezvous.session.past
    }

    /// True if the machines may meet again after a failure.
    pub(in crate::launch) fn meet_again(&self) -> bool {
        self.plan.max_restarts > 0 || self.plan.on_oom == OnOom::ShrinkBatch
    }

    /// True if enough machines wait for the run to continue with more.
    pub(in crate::launch) fn can_grow(&self) -> bool {
        let present = &self.rendezvous.session.present;
        let wait_list = self.connections.wait_list.iter();
        let more =
            wait_list.flat_map(WaitList::nodes).filter(|node| !present.contains(node)).count();
        more > 0 && self.rendezvous.plan_of(present.len() + more).is_some()
    }

    /// The wait list, for the next rendezvous.
    pub(in crate::launch) fn take_wait_list(&mut self) -> Option<WaitList> {
        self.connections.wait_list.take()
    }

    /// The ranks of this machine.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        let first = self.ranks.first_of(self.ranks.place).0;
        (first..first + self.ranks.ranks_per_node).map(Rank)
    }

    /// The connections of this machine's first rank. Returned once.
    pub(in crate::launch) fn take_peers(&mut self) -> Vec<Peer> {
        std::mem::take(&mut self.connections.peers)
    }

    /// The first ranks of the machines as a group of their parents, before any rank was started:
    /// for measurements. For a run the machines then meet again.
    ///
    /// # Errors
    ///
    /// The connections cannot be used, or were given away.
    pub fn group_of_first_ranks(&mut self) -> Result<Arc<dyn Collective>, collective::Error> {
        let each = self.ranks.ranks_per_node;
        let peers = self.take_peers().into_iter();
        let peers = peers.map(|peer| Peer { rank: Rank(peer.rank.0 / each), ..peer }).collect();
        let config = &self.rendezvous.config;
        let world = WorldSize::new(config.nodes).unwrap_or(WorldSize::ONE);
        let timeout = self.rendezvous.prepared.plan.distributed.timeout;
        collective::open_tcp(Rank(config.node), world, peers, timeout)
    }

    /// The descriptors to poll.
    pub(in crate::launch) fn fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let open = self.connections.remotes.iter().filter(|remote| !remote.channel.is_closed());
        open.map(|remote| {
            let unsent = remote.channel.has_unsent();
            let out = if unsent { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::new(&remote.channel, PollFlags::IN | out)
        })
    }

    /// The first rank of this machine is in this `phase` of this `step`.
    pub(in crate::launch) fn first_rank_is_at(&mut self, step: u64, phase: Phase) {
        (self.step, self.phase) = (step, phase);
    }

    /// Sends a heartbeat if it is time for one, reads messages, admits nodes to the
    /// wait list, and returns whether one of the others has failed. To be called more often than
    /// there are heartbeats.
    pub(in crate::launch) fn poll(&mut self) -> bool {
        let now = clock();
        self.watched += now.saturating_sub(self.polled_at).min(MAX_POLL_GAP);
        self.polled_at = now;
        // Several fit into the longest silence, also a short one.
        let interval = HEARTBEAT_INTERVAL.min(self.heartbeat_timeout / 5);
        if self.watched >= self.last_heartbeat + interval {
            self.last_heartbeat = self.watched;
            let (step, phase) = (self.step, self.phase);
            self.send(&NodeMessage::Heartbeat { step, phase });
        }
        if let Some(wait_list) = &mut self.connections.wait_list {
            wait_list.look(&self.rendezvous);
        }
        let run = &self.rendezvous.prepared.folders;
        for remote in &mut self.connections.remotes {
            let _ = remote.channel.flush();
            let lost = remote.receive(self.watched, self.heartbeat_timeout);
            if let Some(why) = lost.filter(|_| !remote.has_concluded()) {
                let RemoteNode { node, first, ref name, step, phase, .. } = *remote;
                let mut failure = Failure::of_node(run, node, first, name, why);
                (failure.step, failure.phase) = (step, phase);
                remote.failed = Some(NodeFailure { failure, is_consequence: false });
            }
        }
        self.connections.remotes.iter().any(|remote| remote.failed.is_some())
    }

    /// Tells the others how this node's ranks have ended, and returns how the run has: with the
    /// first failure of any node that is not another's consequence.
    pub(in crate::launch) fn conclude(
        &mut self,
        own: Result<Outcome, NodeFailure>,
    ) -> Result<Outcome, Box<Failure>> {
        match own {
            // The user here does not want to wait.
            Ok(ended @ Some(Ended::Interrupted { saved: false })) => {
                self.send(&NodeMessage::Ended(ended));
                Ok(ended)
            }
            Ok(ended) => self.conclude_success(ended),
            Err(failed) if failed.is_consequence => self.conclude_consequence(failed),
            Err(failed) => {
                self.send(&NodeMessage::Failed(failed.clone()));
                self.wait_until_read();
                Err(failed.failure)
            }
        }
    }

    fn conclude_success(&mut self, own: Outcome) -> Result<Outcome, Box<Failure>> {
        let is_first = self.node() == 0;
        if !is_first {
            self.send(&NodeMessage::Ended(own));
        }
        self.wait(END_TIMEOUT, |nodes| {
            nodes.connections.remotes.iter().all(RemoteNode::has_concluded)
        });
        if let Some(failed) = self.remote_failure() {
            return Err(self.pass_on(failed.failure));
        }
        // Where one was asked to stop for good meanwhile, none comes back.
        let theirs = || self.connections.remotes.iter().find_map(|remote| remote.ended.flatten());
        let ended = own.or_else(theirs);
        if is_first {
            self.send(&NodeMessage::Ended(ended));
        }
        Ok(ended)
    }

    fn conclude_consequence(&mut self, failed: NodeFailure) -> Result<Outcome, Box<Failure>> {
        if self.node() > 0 && self.remote_failure().is_none() {
            self.send(&NodeMessage::Failed(failed.clone()));
        }
        let is_cause = |failed: &NodeFailure| !failed.is_consequence;
        self.wait(CAUSE_TIMEOUT, |nodes| nodes.remote_failure().as_ref().is_some_and(is_cause));
        let cause = self.remote_failure().filter(is_cause).unwrap_or(failed);
        Err(self.pass_on(cause.failure))
    }

    /// The failure, which node 0 sends to all others.
    fn pass_on(&mut self, cause: Box<Failure>) -> Box<Failure> {
        if self.node() == 0 {
            let failed = NodeFailure { failure: cause.clone(), is_consequence: false };
            self.send(&NodeMessage::Failed(failed));
            self.wait_until_read();
        }
        cause
    }

    /// The failure as this node reports it.
    pub(in crate::launch) fn reported(&self, failure: Failure) -> Failure {
        let is_own = failure.node == Some(self.node());
        Failure { code: if is_own { failure.code } else { ExitCode::Peer }, ..failure }
    }

    /// Announces the decision after a failure that the others know of.
    pub(in crate::launch) fn announce(&mut self, next: Decision) {
        self.connections.remotes.iter_mut().for_each(|remote| remote.has_read = false);
        self.send(&NodeMessage::Next(next));
        let has_read = |remote: &RemoteNode| remote.has_read || remote.channel.is_closed();
        self.wait(ACKNOWLEDGE_TIMEOUT, |nodes| nodes.connections.remotes.iter().all(has_read));
    }

    /// Waits for node 0's decision after a failure; `None` if node 0 is gone.
    pub(in crate::launch) fn decision(&mut self) -> Option<Decision> {
        let has_come = |remote: &RemoteNode| remote.next.is_some() || remote.channel.is_closed();
        self.wait(DECISION_TIMEOUT, |nodes| nodes.connections.remotes.iter().any(has_come));
        self.send(&NodeMessage::Read);
        self.connections.remotes.iter().find_map(|remote| remote.next)
    }

    /// True if node 0 was stopped before the next rendezvous.
    pub(in crate::launch) fn is_called_off(&mut self) -> bool {
        self.node() != 0 && self.connections.remotes.iter_mut().any(RemoteNode::calls_off)
    }

    /// Tells those who wait for the next rendezvous that there is none, if this is node 0.
    pub(in crate::launch) fn call_off(&mut self) {
        if self.node() == 0 {
            self.announce(Decision::Over);
        }
    }

    /// The connections of the last rendezvous, while the next one is made.
    pub(in crate::launch) fn take_remotes(&mut self) -> Vec<RemoteNode> {
        std::mem::take(&mut self.connections.remotes)
    }

    /// Puts the connections back, as there is no next rendezvous.
    pub(in crate::launch) fn put_back(&mut self, remotes: Vec<RemoteNode>) {
        self.connections.remotes = remotes;
    }

    /// Waits until the others have read the last message: node 0 answers it, and waits until those
    /// that it answered close their connections.
    fn wait_until_read(&mut self) {
        let is_first = self.node() == 0;
        self.wait(ACKNOWLEDGE_TIMEOUT, |nodes| {
            // Where they may meet again, they wait for what node 0 decides.
            let answers = is_first && nodes.meet_again();
            let has_read = |remote: &RemoteNode| {
                remote.channel.is_closed() || answers || (!is_first && remote.has_concluded())
            };
            nodes.connections.remotes.iter().all(has_read)
        });
    }

    /// A failure of another node, preferably one that is not a consequence.
    fn remote_failure(&self) -> Option<NodeFailure> {
        let failed = || self.connections.remotes.iter().filter_map(|remote| remote.failed.as_ref());
        failed().find(|failed| !failed.is_consequence).or_else(|| failed().next()).cloned()
    }

    /// Polls until `is_enough`, at most for `time`.
    fn wait(&mut self, time: Duration, is_enough: impl Fn(&Self) -> bool) {
        let until = clock() + time;
        loop {
            self.poll();
            let left = until.saturating_sub(clock());
            if is_enough(self) || left.is_zero() {
                return;
            }
            let mut fds: Vec<PollFd<'_>> = self.fds().collect();
            // Whatever the result, the loop looks again.
            let _ = poll(&mut fds, Some(left.min(HEARTBEAT_INTERVAL)));
        }
    }

    fn send(&mut self, message: &NodeMessage) {
        for remote in &mut self.connections.remotes {
            // A node that cannot be reached is gone, or its heartbeats will time out.
            let _ = match message {
                NodeMessage::Heartbeat { .. } => remote.channel.send(message),
                NodeMessage::Failed(_)
                | NodeMessage::Ended(_)
                | NodeMessage::Next(_)
                | NodeMessage::Read => remote.channel.send_all(message, SEND_TIMEOUT),
            };
        }
    }
}
