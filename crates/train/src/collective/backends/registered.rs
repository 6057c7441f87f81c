//! The backends that a program knows.

use std::sync::Arc;

#[cfg(feature = "mpi")]
use crate::collective::backends::mpi::MpiBackend;
#[cfg(feature = "cuda")]
use crate::collective::backends::nccl;
use crate::collective::backends::nccl::NcclBackend;
use crate::collective::backends::shm::SharedMemoryBackend;
use crate::collective::backends::tcp::TcpBackend;
use crate::collective::backends::{Backend, JoiningRank};
use crate::collective::{Collective, Error, alone, compressed};
use crate::config::kind::{BACKEND, Choice, Kind};
use crate::plan::{BackendFacts, DistributedPlan};
use crate::registry::{Accepts, Family, Registered, Registry};
use crate::units::WorldSize;

/// `distributed.backend`
#[derive(Debug)]
pub enum BackendFamily {}

impl Family for BackendFamily {
    const TABLE: &'static str = BACKEND;
    const NOUN: &'static str = "backend";
    type Object = dyn Backend;
}

impl<K: Kind + Backend> Accepts<K> for BackendFamily {
    fn boxed(kind: K) -> Box<dyn Backend> {
        Box::new(kind)
    }
}

/// Backends that a program knows.
pub type Backends = Registry<BackendFamily>;

impl Registered for BackendFamily {
    fn registered() -> Backends {
        let mut all = Backends::empty();
        all.add::<SharedMemoryBackend>();
        all.add::<NcclBackend>();
        all.add::<TcpBackend>();
        #[cfg(feature = "mpi")]
        all.add::<MpiBackend>();
        all
    }
}

/// Returns the facts of each backend.
pub fn backend_facts(backends: &Backends) -> Vec<BackendFacts> {
    let built = backends.names().filter_map(|name| backends.build(&Choice::named(name)).ok());
    built.map(|backend| backend.facts()).collect()
}

/// Checks that this machine can use the backend of a plan.
///
/// # Errors
///
/// The backend's label, and why it cannot be used.
pub fn check_backend(backends: &Backends, plan: &DistributedPlan) -> Result<(), (String, String)> {
    let Ok(backend) = backends.build(&Choice::named(&plan.backend.name)) else { return Ok(()) };
    let label = || plan.capabilities.label.clone().unwrap_or_else(|| plan.backend.name.clone());
    backend.check().map_err(|why| (label(), why))
}

/// Joins the group of a plan, whose gradients are exchanged as its communication hook says. No
/// rank waits longer than the plan's timeout for another that makes no progress.
///
/// # Errors
///
/// Something that the rank was given is missing, or cannot be used.
pub fn join(backends: &Backends, rank: JoiningRank<'_>) -> Result<Arc<dyn Collective>, Error> {
    let plan = rank.plan;
    if plan.world_size == WorldSize::ONE {
        return Ok(alone());
    }
    #[cfg(feature = "cuda")]
    if let (Some(gpu), true) = (rank.gpu, plan.nccl_if_apart) {
        return Ok(compressed(nccl::open_if_apart(gpu, rank)?, plan.comm_hook));
    }
    let backend = backends.build(&Choice::named(&plan.backend.name));
    let backend = backend.map_err(|error| Error::Connections { what: error.to_string() })?;
    Ok(compressed(backend.open(rank)?, plan.comm_hook))
}
