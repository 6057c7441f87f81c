//! `shm`: the ranks of one machine share memory, in which each adds its share of the gradients.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::collective::backends::{Backend, JoiningRank};
use crate::collective::shm::Shm;
use crate::collective::{Collective, Error};
use crate::config::kind::Kind;
use crate::plan::{BackendCapabilities, BackendFacts, SharedMemory};
use crate::units::{Bytes, Rank, WorldSize};

/// Shared memory of one machine.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SharedMemoryBackend {}

impl Kind for SharedMemoryBackend {
    const NAME: &'static str = "shm";
}

impl Backend for SharedMemoryBackend {
    fn facts(&self) -> BackendFacts {
        BackendFacts {
            one_machine: Some(SharedMemory::Gradients),
            is_automatic: true,
            // Its size says more than its name.
            capabilities: BackendCapabilities::default(),
            ..BackendFacts::named(Self::NAME)
        }
    }

    fn open(&self, rank: JoiningRank<'_>) -> Result<Arc<dyn Collective>, Error> {
        rank.through_shared_memory()
    }
}

/// Joins the group of all ranks that share the memory of `fd`: `mapping` bytes, zeroed when it was
/// made. No rank waits longer than `timeout` for another.
///
/// # Errors
///
/// [`Error::Mapping`]: the memory is too small for the world, or cannot be mapped.
pub fn open_shm(
    fd: &OwnedFd,
    mapping: Bytes,
    rank: Rank,
    world: WorldSize,
    timeout: Duration,
) -> Result<Arc<dyn Collective>, Error> {
    Ok(Arc::new(Shm::open(fd, mapping, rank, world, timeout)?))
}
