//! The plan -> the group of a rank.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::collective::compressed::Compressed;
#[cfg(feature = "cuda")]
use crate::collective::device_group::Control;
use crate::collective::leaders::{Leaders, Place};
use crate::collective::links::Meanwhile;
use crate::collective::machines::Machines;
use crate::collective::mpi::MpiLinks;
#[cfg(feature = "cuda")]
use crate::collective::nccl;
use crate::collective::{Collective, Error, shm, solo};
use crate::plan::{BackendPlan, CommHook, DistributedPlan};
use crate::transport::Peer;
use crate::units::{Rank, WorldSize};

/// [`open`] or [`open_tcp`] for a rank that computes on a GPU: gradients go through NCCL if the
/// plan says so, or if the ranks find that their GPUs differ.
#[cfg(feature = "cuda")]
pub(crate) fn open_on_gpu(
    gpu: &crate::ops::cuda::Gpu,
    plan: &DistributedPlan,
    rank: Rank,
    fd: Option<OwnedFd>,
    peers: Vec<Peer>,
) -> Result<Arc<dyn Collective>, Error> {
    let world = plan.world_size;
    let timeout = plan.timeout;
    let hook = plan.comm_hook;
    let control: Arc<dyn Control> = match plan.backend {
        BackendPlan::Solo => return open(plan.backend, rank, world, fd, timeout),
        BackendPlan::Mpi => return open_machines(plan, rank, fd, peers),
        BackendPlan::Tcp | BackendPlan::Nccl { mapping: None } => match machine(plan, rank, fd)? {
            None => Arc::new(Leaders::open(rank, world, peers, timeout)?),
            Some(local) => Arc::new(of_machine(plan, rank, local, peers)?),
        },
        BackendPlan::Shm { mapping } | BackendPlan::Nccl { mapping: Some(mapping) } => {
            let fd = fd.ok_or_else(|| Error::mapping("no descriptor of it was received"))?;
            Arc::new(shm::Shm::open(&fd, mapping, rank, world, timeout)?)
        }
    };
    let is_planned = matches!(plan.backend, BackendPlan::Nccl { .. });
    if plan.nccl_shares_a_gpu() {
        nccl::check_sharing()?;
    } else if plan.nccl_if_apart || (is_planned && plan.nodes > 1) {
        // Only the ranks together know the GPUs of all machines.
        match check_different_gpus(&control.all_gather(&nccl::identity(gpu))?) {
            Err(what) if is_planned => return Err(Error::Nccl { what }),
            Err(_) => return Ok(control),
            Ok(()) => {}
        }
    } else if !is_planned {
        return Ok(control);
    }
    Ok(Arc::new(nccl::open(gpu, control, hook, timeout)?))
}

/// Checks that this machine has the libraries that `backend` calls.
#[cfg(feature = "cuda")]
pub(crate) fn check(backend: BackendPlan) -> Result<(), String> {
    match backend {
        BackendPlan::Nccl { .. } => crate::cuda_libraries::check_nccl(),
        _ => Ok(()),
    }
}

/// Checks that this machine has the libraries that `backend` calls: without CUDA it calls none.
#[cfg(not(feature = "cuda"))]
#[expect(clippy::unnecessary_wraps, reason = "as with the feature")]
pub(crate) fn check(_backend: BackendPlan) -> Result<(), String> {
    Ok(())
}

/// Whether all ranks compute on different GPUs, or why they cannot use NCCL. Each rank sends the
/// identity of its GPU, or nothing if it has no NCCL.
#[cfg(any(feature = "cuda", test))]
fn check_different_gpus(gpus: &[Vec<u8>]) -> Result<(), String> {
    if let Some(rank) = gpus.iter().position(Vec::is_empty) {
        return Err(format!(
            "rank {rank} has no NCCL, or its driver does not tell which GPU it has"
        ));
    }
    for (rank, gpu) in gpus.iter().enumerate() {
        if let Some(earlier) = gpus[..rank].iter().position(|other| other == gpu) {
            return Err(format!(
                "ranks {earlier} and {rank} compute on the same GPU, which it refuses"
            ));
        }
    }
    Ok(())
}

/// Joins the group of all ranks of an MPI launcher, each by itself, after `mpi::start`. No rank
/// waits longer than `timeout` for another.
///
/// # Errors
///
/// [`Error::Mpi`]: MPI was not started, or for another rank.
pub(crate) fn open_mpi(
    rank: Rank,
    world: WorldSize,
    timeout: Duration,
) -> Result<Arc<dyn Collective>, Error> {
    let place = Place { rank, world, local: WorldSize::ONE };
    Ok(Arc::new(through_mpi(place, timeout, None)?))
}

/// The links of a leader to the others through MPI.
fn through_mpi(
    place: Place,
    timeout: Duration,
    meanwhile: Option<Meanwhile>,
) -> Result<Leaders, Error> {
    Leaders::linked(place, Box::new(MpiLinks::open(place)?), timeout, meanwhile)
}

/// Joins the group that the plan describes. `fd` is the shared mapping, zeroed when it was made;
/// `solo` needs none. No rank waits longer than `timeout` for another.
///
/// # Errors
///
/// [`Error::Mapping`]: the descriptor is missing, too small for the world, or cannot be mapped.
pub fn open(
    backend: BackendPlan,
    rank: Rank,
    world: WorldSize,
    fd: Option<OwnedFd>,
    timeout: Duration,
) -> Result<Arc<dyn Collective>, Error> {
    match backend {
        BackendPlan::Solo if world == WorldSize::ONE => Ok(Arc::new(solo::Solo::default())),
        BackendPlan::Solo => Err(Error::mapping(format!("{world} ranks cannot share `solo`"))),
        BackendPlan::Shm { mapping } => {
            let fd = fd.ok_or_else(|| Error::mapping("no descriptor of it was received"))?;
            Ok(Arc::new(shm::Shm::open(&fd, mapping, rank, world, timeout)?))
        }
        BackendPlan::Mpi => open_mpi(rank, world, timeout),
        BackendPlan::Nccl { .. } => Err(Error::mapping("`nccl` is opened on a GPU")),
        BackendPlan::Tcp => Err(Error::Connections { what: "none were received".to_owned() }),
    }
}

/// The group with the communication hook `hook`: its reductions are in half precision. Without a
/// hook, and in a world of one, it is unchanged. A group that sums on GPUs got its hook when it was
/// opened.
pub fn compressed(group: Arc<dyn Collective>, hook: CommHook) -> Arc<dyn Collective> {
    if hook == CommHook::None || group.world_size() == WorldSize::ONE {
        return group;
    }
    Arc::new(Compressed::new(group, hook))
}

/// Joins a group whose ranks share no memory, through the connections to all other ranks. No rank
/// waits longer than `timeout` for another that makes no progress.
///
/// # Errors
///
/// [`Error::Connections`]: a connection is missing, or cannot be used.
pub(crate) fn open_tcp(
    rank: Rank,
    world: WorldSize,
    peers: Vec<Peer>,
    timeout: Duration,
) -> Result<Arc<dyn Collective>, Error> {
    Ok(Arc::new(Leaders::open(rank, world, peers, timeout)?))
}

/// Joins the group of a plan for several machines: through shared memory with the ranks of this
/// machine, and through the connections `peers`, or MPI, with the others. No rank waits longer than
/// `timeout` for another that makes no progress.
///
/// # Errors
///
/// [`Error::Connections`], [`Error::Mpi`] and [`Error::Mapping`]: a connection, MPI or the memory
/// is missing, or cannot be used.
pub(crate) fn open_machines(
    plan: &DistributedPlan,
    rank: Rank,
    fd: Option<OwnedFd>,
    peers: Vec<Peer>,
) -> Result<Arc<dyn Collective>, Error> {
    let world = plan.world_size;
    let timeout = plan.timeout;
    match machine(plan, rank, fd)? {
        None if plan.backend == BackendPlan::Mpi => {
            let place = Place { rank, world, local: WorldSize::ONE };
            Ok(Arc::new(through_mpi(place, timeout, None)?.summing_by(plan.all_reduce)))
        }
        None => open_tcp(rank, world, peers, timeout),
        Some(local) => Ok(Arc::new(of_machine(plan, rank, local, peers)?)),
    }
}

/// A rank of a machine with several.
fn of_machine(
    plan: &DistributedPlan,
    rank: Rank,
    local: shm::Shm,
    peers: Vec<Peer>,
) -> Result<Machines, Error> {
    let connect = |place, timeout, meanwhile| match plan.backend {
        BackendPlan::Mpi => through_mpi(place, timeout, meanwhile),
        _ => Leaders::connected(place, peers, timeout, meanwhile),
    };
    Machines::open(rank, plan.world_size, local, plan.timeout, connect)
}

/// The group of this machine's ranks, if there are several.
fn machine(
    plan: &DistributedPlan,
    rank: Rank,
    fd: Option<OwnedFd>,
) -> Result<Option<shm::Shm>, Error> {
    let Some(mapping) = plan.machine_mapping else { return Ok(None) };
    let local = plan.local_world();
    let own = Rank(rank.0 % local.get());
    let fd = fd.ok_or_else(|| Error::mapping("no descriptor of it was received"))?;
    shm::Shm::open(&fd, mapping, own, local, plan.timeout).map(Some)
}

#[cfg(test)]
mod tests {
    use super::check_different_gpus;

    #[test]
    fn gpus_differ_if_all_are_known_and_none_occurs_twice() {
        let check = |names: &[&str]| {
            let gpus: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            check_different_gpus(&gpus)
        };
        assert_eq!(check(&["a", "c", "b"]), Ok(()));
        let shared = check(&["a", "b", "a"]).unwrap_err();
        assert!(shared.starts_with("ranks 0 and 2 compute on the same GPU"), "{shared}");
        let without = check(&["a", ""]).unwrap_err();
        assert!(without.starts_with("rank 1 has no NCCL"), "{without}");
    }
}
