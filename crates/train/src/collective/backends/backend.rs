//! The interface of a backend, and the arguments with which a rank joins a group.

use std::fmt::Debug;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::collective::shm::Shm;
use crate::collective::{Collective, Error};
#[cfg(feature = "cuda")]
use crate::ops::cuda::Gpu;
use crate::plan::{BackendFacts, DistributedPlan};
use crate::transport::Peer;
use crate::units::Rank;

/// A way for ranks to exchange tensors.
pub trait Backend: Debug + Send + Sync {
    /// Returns the facts for planning: where the backend can be used, and what it needs there.
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
    /// Plan of the group: its size, timeout, and memory.
    pub plan: &'a DistributedPlan,
    /// This rank.
    pub rank: Rank,
    /// The memory that the ranks of this machine share, zeroed when it was made; `None` if they
    /// share none ([`SharedMemory`](crate::plan::SharedMemory)).
    pub memory: Option<OwnedFd>,
    /// Connections to the first ranks of the other machines, of the first one of this machine.
    pub peers: Vec<Peer>,
    /// GPU of this rank; `None` on the CPU.
    #[cfg(feature = "cuda")]
    pub gpu: Option<&'a Gpu>,
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

    pub(super) fn shm(self) -> Result<Shm, Error> {
        let Self { plan, rank, memory, .. } = self;
        let memory = plan.backend.mapping.zip(memory);
        let (mapping, fd) =
            memory.ok_or_else(|| Error::mapping("no descriptor of it was received"))?;
        Shm::open(&fd, mapping, rank, plan.world_size, plan.timeout)
    }

    /// The group of this machine's ranks, if several of several machines share memory, and the
    /// connections.
    pub(super) fn machine(self) -> Result<(Option<Shm>, Vec<Peer>), Error> {
        let Self { plan, rank, memory, peers, .. } = self;
        let Some(mapping) = plan.machine_mapping else { return Ok((None, peers)) };
        let local = plan.local_world();
        let own = Rank(rank.0 % local.get());
        let fd = memory.ok_or_else(|| Error::mapping("no descriptor of it was received"))?;
        Ok((Some(Shm::open(&fd, mapping, own, local, plan.timeout)?), peers))
    }
}
