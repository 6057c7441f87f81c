//! A rank's process -> its [`Membership`]: plan, shared memory, connections, and link to its parent
//! or launcher.
//!
//! If another launcher started ranks on several machines, the first rank of each machine meets
//! those of the others, while the other ranks of the machine wait for it (`local_rendezvous`).

use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::collective::mpi::StartError;
use crate::failpoint;
use crate::launch::foreign::local_rendezvous::{self, Host, LocalGroup, RankWait, RendezvousError};
use crate::launch::foreign::mpi::start_mpi;
use crate::launch::machines::joining::NodeRendezvousError;
use crate::launch::machines::node_rendezvous::join_nodes;
use crate::launch::machines::rendezvous::NodeConfig;
use crate::launch::messages::{NoRun, PrepareError, PreparedRun, ToRank};
use crate::launch::rank::env::{Child, ExternalRank, Role};
use crate::launch::rank::inherit;
use crate::launch::rank::link::{Link, Membership};
use crate::launch::rank::peer_monitor::PeerMonitor;
use crate::launch::rank::status::RankStatus;
use crate::plan::Plan;
use crate::transport::Peer;
use crate::transport::channel::Channel;
use crate::units::{Rank, WorldSize};

/// Longest wait of a rank for its plan.
const PLAN_TIMEOUT: Duration = Duration::from_mins(1);

/// Why a rank cannot join its group.
#[derive(Debug, thiserror::Error)]
pub enum JoinError<E> {
    /// This is rank 0 under a foreign launcher, and it could not prepare the run. The other ranks
    /// were told.
    #[error(transparent)]
    Prepare(E),
    /// This process is not a rank.
    #[error(
        "this process was not started as a rank: `ddprun`, torchrun, srun and mpirun start ranks"
    )]
    NotARank,
    /// The launcher has ranks on several machines.
    #[error(
        "the launcher started {world} ranks, {local_world} of them on this machine: for several \
         machines, start them with mpirun, set `DDPRUN_TOKEN_FILE` to the run's token file, or start \
         `ddprun --nnodes` on each machine without a launcher (docs/machines.md)"
    )]
    SeveralMachines { world: WorldSize, local_world: WorldSize },
    /// The plan is for another number of ranks.
    #[error("the world size of the plan is {planned}, but the launcher started {launched}")]
    OtherWorld {
        /// `plan.distributed.world_size`
        planned: WorldSize,
        /// `WORLD_SIZE`
        launched: WorldSize,
    },
    /// Something that our own parent passed on cannot be used.
    #[error("rank {rank} cannot {what}")]
    Inherited {
        rank: Rank,
        what: &'static str,
        #[source]
        source: io::Error,
    },
    /// MPI cannot be used.
    #[error(transparent)]
    Mpi(#[from] StartError),
    /// The ranks of a foreign launcher did not find each other.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
}

/// [`join_within`] with the default [`RankWait`].
///
/// # Errors
///
/// See [`JoinError`].
pub fn join<E: PrepareError>(
    role: &Role,
    prepare: impl FnOnce() -> Result<PreparedRun, E>,
) -> Result<Membership, JoinError<E>> {
    join_within(role, RankWait::default(), prepare)
}

/// Joins the group of this rank. Under a foreign launcher rank 0 prepares the run by `prepare`
/// (parses the experiment, creates folders) and sends it to the others; `prepare` is called nowhere
/// else. Of several machines, the first rank of each joins by [`FirstOfMachine`]. The others `wait`
/// for the first one of their machine.
///
/// [`FirstOfMachine`]: crate::launch::FirstOfMachine
///
/// # Errors
///
/// See [`JoinError`].
pub(crate) fn join_within<E: PrepareError>(
    role: &Role,
    wait: RankWait,
    prepare: impl FnOnce() -> Result<PreparedRun, E>,
) -> Result<Membership, JoinError<E>> {
    match role {
        Role::Parent => Err(JoinError::NotARank),
        Role::Child(child) => join_parent(child),
        Role::Foreign(foreign) => join_foreign(foreign, wait, prepare),
    }
}

fn join_parent<E>(child: &Child) -> Result<Membership, JoinError<E>> {
    let rank = child.rank;
    let fail = |what| move |source| JoinError::Inherited { rank, what, source };
    let socket = inherit::take(child.control_fd).map_err(fail("use its control socket"))?;
    let shm = child.shm_fd.map(inherit::take).transpose().map_err(fail("use its shared memory"))?;
    let status = child.status_fd.map(inherit::take).transpose();
    let status = status.map_err(fail("use its status file"))?.map(RankStatus::from);
    let channel = Channel::new(UnixStream::from(socket));
    let mut channel = channel.map_err(fail("use its control socket"))?;
    let first = channel.receive_one(PLAN_TIMEOUT).map_err(fail("receive its plan"))?;
    let ToRank::Plan(rank_plan) = first else {
        return Err(fail("receive its plan")(io::ErrorKind::InvalidData.into()));
    };
    let peers = peers(&mut channel, &child.peer_fds).map_err(fail("use its connections"))?;
    failpoint::reach("join");
    let status = status.map(|status| (status, rank_plan.plan.distributed.timeout));
    let logs = rank_plan.run.logs.clone();
    let link = Link::open(Some(channel), status, PeerMonitor::default(), rank, logs);
    let link = link.map_err(fail("listen to its parent"))?;
    Ok(Membership { rank_plan: *rank_plan, shm, peers, link })
}

/// The inherited sockets, with the parent's description of each.
fn peers(channel: &mut Channel, fds: &[RawFd]) -> io::Result<Vec<Peer>> {
    if fds.is_empty() {
        return Ok(Vec::new());
    }
    let ToRank::Peers(descriptions) = channel.receive_one(PLAN_TIMEOUT)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let peers = descriptions.into_iter().zip(fds);
    peers.map(|(peer, &fd)| Ok(peer.with_socket(inherit::take(fd)?))).collect()
}

fn join_foreign<E: PrepareError>(
    foreign: &ExternalRank,
    wait: RankWait,
    prepare: impl FnOnce() -> Result<PreparedRun, E>,
) -> Result<Membership, JoinError<E>> {
    let ExternalRank { world, local_world, .. } = *foreign;
    if world != local_world && foreign.rendezvous.is_none() {
        return Err(JoinError::SeveralMachines { world, local_world });
    }
    let first = foreign.is_first_of_machine();
    let (prepared, shared) =
        if first { host(foreign, wait, prepare)? } else { local_rendezvous::join(foreign, wait)? };
    membership(foreign, prepared, shared, vec![])
}

/// Starts MPI if the plan uses it, and listens to signals and to the other ranks of the machine.
fn membership<E>(
    foreign: &ExternalRank,
    prepared: PreparedRun,
    shared: LocalGroup,
    peers: Vec<Peer>,
) -> Result<Membership, JoinError<E>> {
    if prepared.plan.distributed.meets_by_mpi() {
        start_mpi(foreign)?;
    }
    let rank = foreign.rank;
    let fail = |source| JoinError::Inherited { rank, what: "listen to signals", source };
    let LocalGroup { memory, peer_monitor } = shared;
    Membership::of_foreign(foreign, prepared, memory, peers, peer_monitor).map_err(fail)
}

/// Rank 0: listens first, so that the others can wait while the run is prepared.
fn host<E: PrepareError>(
    foreign: &ExternalRank,
    wait: RankWait,
    prepare: impl FnOnce() -> Result<PreparedRun, E>,
) -> Result<(PreparedRun, LocalGroup), JoinError<E>> {
    let host = Host::open(foreign)?;
    let prepared = match prepare() {
        Ok(prepared) => prepared,
        Err(error) => {
            host.refuse(NoRun::of(&format!("rank {}", foreign.rank), &error));
            return Err(JoinError::Prepare(error));
        }
    };
    let (planned, launched) = (prepared.plan.distributed.world_size, foreign.world);
    if planned != launched {
        let error = JoinError::OtherWorld { planned, launched };
        host.refuse(NoRun::unfit(error.to_string()));
        return Err(error);
    }
    let shared = host.welcome(&prepared, wait.say)?;
    Ok((prepared, shared))
}

/// The first rank of a machine, for which the others there wait.
pub(crate) struct FirstOfMachine<'a> {
    foreign: &'a ExternalRank,
    host: Host<'a>,
}

impl<'a> FirstOfMachine<'a> {
    /// Lets the other ranks of the machine connect, and wait for the run.
    ///
    /// # Errors
    ///
    /// Another process is this rank, or no socket is to be had.
    pub(crate) fn open<E>(foreign: &'a ExternalRank) -> Result<Self, JoinError<E>> {
        Ok(Self { foreign, host: Host::open(foreign)? })
    }

    /// Tells the other ranks of the machine that there is no run.
    pub(crate) fn refuse(&self, why: &impl PrepareError) {
        self.host.refuse(NoRun::of(&format!("rank {}", self.foreign.rank), why));
    }

    /// Meets the first ranks of the other machines. Rank 0 prepares the run by `prepare`, as in
    /// [`join_nodes`].
    ///
    /// # Errors
    ///
    /// Errors of [`join_nodes`]; the other ranks of the machine are told.
    pub(crate) fn meet<E: PrepareError>(
        &self,
        config: &NodeConfig,
        plan: &Plan,
        prepare: impl FnOnce(Option<&str>) -> Result<PreparedRun, E>,
        report: &mut dyn FnMut(&str),
    ) -> Result<JoinedMachines, NodeRendezvousError<E>> {
        let met = join_nodes(config, plan, &[], prepare, report);
        let (prepared, mut nodes) =
            met.inspect_err(|error| self.host.refuse(error.for_others()))?;
        Ok(JoinedMachines { prepared, peers: nodes.take_peers() })
    }

    /// Sends the run to the other ranks of the machine, which has all that they need by now. All
    /// notice a later failure when connections break, as does the launcher.
    ///
    /// # Errors
    ///
    /// A rank of this machine does not come, MPI cannot be used, or no thread is to be had.
    pub(crate) fn welcome<E>(
        self,
        met: JoinedMachines,
        say: fn(&str),
    ) -> Result<Membership, JoinError<E>> {
        let JoinedMachines { prepared, peers } = met;
        let shared = self.host.welcome(&prepared, say)?;
        membership(self.foreign, prepared, shared, peers)
    }
}

/// A machine that has met the others.
pub(crate) struct JoinedMachines {
    /// The run that all machines train.
    pub(crate) prepared: PreparedRun,
    peers: Vec<Peer>,
}
