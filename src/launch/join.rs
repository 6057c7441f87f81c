//! A rank's process -> its place in the group: plan, shared memory, and line to whoever started it.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::failpoint;
use crate::launch::foreign::local_rendezvous as foreign;
use crate::launch::messages::ToRank;
use crate::launch::rank::env::{Child, Foreign, Role};
use crate::launch::rank::inherit;
use crate::launch::rank::link::Link;
use crate::launch::rank::peer_monitor::PeerMonitor;
use crate::launch::rank::status::RankStatus;
use crate::plan::{Plan, RankPlan, RunFolders};
use crate::transport::Peer;
use crate::transport::channel::Channel;
use crate::units::{Rank, WorldSize};

/// Longest wait of a rank for its parent's first word.
const PLAN_PATIENCE: Duration = Duration::from_mins(1);

/// A rank's place in its group.
pub struct Membership {
    /// What to do.
    pub rank_plan: RankPlan,
    /// The mapping to hand to `collective::open`; absent in a world of one.
    pub shm: Option<OwnedFd>,
    /// The other ranks, to hand to `collective::open_tcp`; empty on one machine.
    pub peers: Vec<Peer>,
    /// Progress, errors and requests to stop.
    pub link: Link,
}

/// What a run is, as the one who makes it says: plan, folders, and whether to continue from a checkpoint.
pub type Made = (Plan, RunFolders, bool);

/// Why a rank has no place. All but `Make` and `Environment` mean that the rendezvous failed.
#[derive(Debug, thiserror::Error)]
pub enum JoinError<E> {
    /// This is rank 0 under a foreign launcher, and it could not make the run. The other ranks were told.
    #[error(transparent)]
    Make(E),
    /// This process is no rank.
    #[error(
        "this process was not started as a rank: `ddprun`, torchrun, srun and mpirun start ranks"
    )]
    NotARank,
    /// The launcher has ranks on several machines.
    #[error(
        "the launcher started {world} ranks, {local_world} of them on this machine: for several machines, set `DDPRUN_TOKEN_FILE` to the run's token file, or start `ddprun --nnodes` on each machine without a launcher (docs/machines.md)"
    )]
    SeveralMachines {
        /// All ranks.
        world: WorldSize,
        /// Those of this machine.
        local_world: WorldSize,
    },
    /// The plan is for another number of ranks.
    #[error("the world size of the plan is {planned}, but the launcher started {launched}")]
    OtherWorld {
        /// `plan.distributed.world_size`
        planned: WorldSize,
        /// `WORLD_SIZE`
        launched: WorldSize,
    },
    /// What our own parent passed on cannot be used.
    #[error("rank {rank} cannot {what}")]
    Inherited {
        /// This rank.
        rank: Rank,
        /// What failed.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The ranks of a foreign launcher did not find each other.
    #[error(transparent)]
    Rendezvous(#[from] foreign::Error),
}

/// Takes this rank's place. Under a foreign launcher rank 0 makes the run by `make` (parses the experiment,
/// creates folders) and hands it to the others; `make` is not called anywhere else.
///
/// # Errors
///
/// As [`JoinError`].
pub fn join<E: std::fmt::Display>(
    role: &Role,
    make: impl FnOnce() -> Result<Made, E>,
) -> Result<Membership, JoinError<E>> {
    match role {
        Role::Parent => Err(JoinError::NotARank),
        Role::Child(child) => join_parent(child),
        Role::Foreign(place) => join_foreign(place, make),
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
    let first = channel.receive_one(PLAN_PATIENCE).map_err(fail("receive its plan"))?;
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

/// The inherited sockets, with what the parent says of them.
fn peers(channel: &mut Channel, fds: &[RawFd]) -> io::Result<Vec<Peer>> {
    if fds.is_empty() {
        return Ok(Vec::new());
    }
    let ToRank::Peers(words) = channel.receive_one(PLAN_PATIENCE)? else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let peers = words.into_iter().zip(fds).map(|(word, &fd)| Ok(word.with(inherit::take(fd)?)));
    peers.collect()
}

fn join_foreign<E: std::fmt::Display>(
    place: &Foreign,
    make: impl FnOnce() -> Result<Made, E>,
) -> Result<Membership, JoinError<E>> {
    let Foreign { rank, world, local_world, restarts, .. } = *place;
    if world != local_world {
        return Err(JoinError::SeveralMachines { world, local_world });
    }
    let (made, shm, peer_monitor) =
        if rank.is_first() { serve(place, make)? } else { foreign::receive(place)? };
    let (plan, run, resume) = made;
    let fail = |source| JoinError::Inherited { rank, what: "listen to signals", source };
    let link = Link::open(None, None, peer_monitor, rank, run.logs.clone()).map_err(fail)?;
    // The launcher keeps to itself why it started the group again.
    let causes = vec![];
    let rank_plan = RankPlan { plan, rank, run, resume, restarts, causes };
    Ok(Membership { rank_plan, shm, peers: vec![], link })
}

/// Rank 0: opens the meeting place first, so that the others wait there while the run is made.
fn serve<E: std::fmt::Display>(
    place: &Foreign,
    make: impl FnOnce() -> Result<Made, E>,
) -> Result<(Made, Option<OwnedFd>, PeerMonitor), JoinError<E>> {
    let host = foreign::Host::open(place)?;
    let made = match make() {
        Ok(made) => made,
        Err(error) => {
            host.refuse(&error.to_string());
            return Err(JoinError::Make(error));
        }
    };
    let (planned, launched) = (made.0.distributed.world_size, place.world);
    if planned != launched {
        let error = JoinError::OtherWorld { planned, launched };
        host.refuse(&error.to_string());
        return Err(error);
    }
    let (shm, peer_monitor) = host.welcome(&made)?;
    Ok((made, shm, peer_monitor))
}
