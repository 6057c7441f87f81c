//! The backend of a plan -> the group of a rank. A backend is a kind: it stands in one file with
//! what the plan must know of it ([`BackendFacts`]) and how a rank joins its group.

mod mpi;
mod nccl;
mod shm;
mod tcp;

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::collective::shm::Shm;
use crate::collective::solo::alone;
use crate::collective::{Collective, Error, compressed};
use crate::config::kind::{BACKEND, Choice, Kind};
#[cfg(feature = "cuda")]
use crate::ops::cuda::Gpu;
use crate::plan::{BackendFacts, DistributedPlan};
use crate::registry::{Family, Member, Registry};
use crate::transport::Peer;
use crate::units::{Rank, WorldSize};

pub(crate) use mpi::open_mpi;
pub use shm::open_shm;
pub(crate) use tcp::open_tcp;

/// How ranks exchange tensors.
pub trait Backend: Debug + Send + Sync {
    /// What it says of itself, for planning: where it can be used, and what it takes there.
    fn facts(&self) -> BackendFacts;

    /// Why this machine cannot use it, such as a library that is missing.
    ///
    /// # Errors
    ///
    /// In words that stand behind "is unavailable: ".
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Joins the group of all ranks of the plan, of which there are several. No wait is longer than
    /// `rank.plan.timeout`.
    fn open(&self, rank: JoiningRank<'_>) -> Result<Arc<dyn Collective>, Error>;
}

/// A rank that joins its group, and what it was given for it.
pub struct JoiningRank<'a> {
    /// What is decided of the group: its size, timeout, and memory.
    pub plan: &'a DistributedPlan,
    /// This rank.
    pub rank: Rank,
    /// The memory that the ranks of this machine share, zeroed when it was made; `None` if they
    /// share none ([`SharedMemory`](crate::plan::SharedMemory)).
    pub memory: Option<OwnedFd>,
    /// Connections to the first ranks of the other machines, of the first one of this machine.
    pub(crate) peers: Vec<Peer>,
    /// Where it computes; `None` = on the CPU.
    #[cfg(feature = "cuda")]
    pub(crate) gpu: Option<&'a Gpu>,
}

impl<'a> JoiningRank<'a> {
    /// A rank on the CPU of the only machine.
    pub fn new(plan: &'a DistributedPlan, rank: Rank, memory: Option<OwnedFd>) -> Self {
        Self {
            plan,
            rank,
            memory,
            peers: Vec::new(),
            #[cfg(feature = "cuda")]
            gpu: None,
        }
    }

    /// Joins all ranks through the memory that they share, all being on this machine: as a group of
    /// its own, or as the one that a backend controls its own by.
    ///
    /// # Errors
    ///
    /// [`Error::Mapping`]: the memory is missing, or cannot be mapped.
    pub fn through_shared_memory(self) -> Result<Arc<dyn Collective>, Error> {
        Ok(Arc::new(self.shm()?))
    }

    fn shm(self) -> Result<Shm, Error> {
        let Self { plan, rank, memory, .. } = self;
        let memory = plan.backend.mapping.zip(memory);
        let (mapping, fd) =
            memory.ok_or_else(|| Error::mapping("no descriptor of it was received"))?;
        Shm::open(&fd, mapping, rank, plan.world_size, plan.timeout)
    }

    /// The group of this machine's ranks, if several of several machines share memory, and the
    /// connections.
    fn machine(self) -> Result<(Option<Shm>, Vec<Peer>), Error> {
        let Self { plan, rank, memory, peers, .. } = self;
        let Some(mapping) = plan.machine_mapping else { return Ok((None, peers)) };
        let local = plan.local_world();
        let own = Rank(rank.0 % local.get());
        let fd = memory.ok_or_else(|| Error::mapping("no descriptor of it was received"))?;
        Ok((Some(Shm::open(&fd, mapping, own, local, plan.timeout)?), peers))
    }
}

/// `distributed.backend`
#[derive(Debug)]
pub enum BackendFamily {}

impl Family for BackendFamily {
    const TABLE: &'static str = BACKEND;
    const NOUN: &'static str = "backend";
    type Object = dyn Backend;
}

impl<K: Kind + Backend> Member<BackendFamily> for K {
    fn boxed(self) -> Box<dyn Backend> {
        Box::new(self)
    }
}

/// Backends that a program knows.
pub type Backends = Registry<BackendFamily>;

impl Default for Backends {
    /// Those that come with ddprun.
    fn default() -> Self {
        let mut all = Self::empty();
        all.add::<shm::SharedMemoryBackend>();
        all.add::<nccl::NcclBackend>();
        all.add::<tcp::TcpBackend>();
        all.add::<mpi::MpiBackend>();
        all
    }
}

impl Backends {
    /// What each says of itself.
    pub fn facts(&self) -> Vec<BackendFacts> {
        let built = self.names().filter_map(|name| self.build(&Choice::named(name)).ok());
        built.map(|backend| backend.facts()).collect()
    }

    /// Checks that this machine can use the backend of a plan.
    ///
    /// # Errors
    ///
    /// What it is called, and why it cannot be used.
    pub(crate) fn check(&self, plan: &DistributedPlan) -> Result<(), (String, String)> {
        let Ok(backend) = self.build(&Choice::named(&plan.backend.name)) else { return Ok(()) };
        let label = || plan.capabilities.label.clone().unwrap_or_else(|| plan.backend.name.clone());
        backend.check().map_err(|why| (label(), why))
    }

    /// Joins the group of a plan, whose gradients are exchanged as its communication hook says. No
    /// rank waits longer than the plan's timeout for another that makes no progress.
    ///
    /// # Errors
    ///
    /// What the rank was given is missing, or cannot be used.
    pub fn open(&self, rank: JoiningRank<'_>) -> Result<Arc<dyn Collective>, Error> {
        let plan = rank.plan;
        if plan.world_size == WorldSize::ONE {
            return Ok(alone());
        }
        #[cfg(feature = "cuda")]
        if let (Some(gpu), true) = (rank.gpu, plan.nccl_if_apart) {
            return Ok(compressed(nccl::open_if_apart(gpu, rank)?, plan.comm_hook));
        }
        let backend = self.build(&Choice::named(&plan.backend.name));
        let backend = backend.map_err(|error| Error::Connections { what: error.to_string() })?;
        Ok(compressed(backend.open(rank)?, plan.comm_hook))
    }
}
