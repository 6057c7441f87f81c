//! `mpi`: as `tcp`, but through the library of the MPI launcher that started the ranks.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::collective::backends::{Backend, JoiningRank};
use crate::collective::hierarchical_group::HierarchicalGroup;
use crate::collective::inter_node_group::{InterNodeGroup, Topology};
use crate::collective::links::WaitHook;
use crate::collective::mpi::MpiLinks;
use crate::collective::{Collective, Error};
use crate::config::kind::Kind;
use crate::plan::{BackendCapabilities, BackendFacts, SharedMemory};
use crate::units::{Rank, WorldSize};

/// Ranks that an MPI launcher started (mpirun, or `srun --mpi=pmix`; docs/machines.md), by its
/// library.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MpiBackend {}

impl Kind for MpiBackend {
    const NAME: &'static str = "mpi";
}

impl Backend for MpiBackend {
    fn facts(&self) -> BackendFacts {
        BackendFacts {
            several_machines: Some(SharedMemory::Gradients),
            sums_by_library: true,
            is_automatic: true,
            capabilities: BackendCapabilities {
                label: Some("MPI".to_owned()),
                meets_by_mpi: true,
                // As with `tcp`, and the copies of what MPI sends and receives.
                bucket_copies: 3,
                ..BackendCapabilities::default()
            },
            ..BackendFacts::named(Self::NAME)
        }
    }

    fn open(&self, joining: JoiningRank<'_>) -> Result<Arc<dyn Collective>, Error> {
        let JoiningRank { plan, rank, .. } = joining;
        let (world, timeout) = (plan.world_size, plan.timeout);
        match joining.machine()?.0 {
            None => {
                let topology = Topology { rank, world, local: WorldSize::ONE };
                Ok(Arc::new(linked(topology, timeout, None)?.summing_by(plan.all_reduce)))
            }
            Some(local) => {
                Ok(Arc::new(HierarchicalGroup::open(rank, world, local, timeout, linked)?))
            }
        }
    }
}

/// Joins the group of all ranks of an MPI launcher, each by itself, after `mpi::start`. No rank
/// waits longer than `timeout` for another.
///
/// # Errors
///
/// [`Error::Mpi`]: MPI was not started, or for another rank.
pub fn open_mpi(
    rank: Rank,
    world: WorldSize,
    timeout: Duration,
) -> Result<Arc<dyn Collective>, Error> {
    let topology = Topology { rank, world, local: WorldSize::ONE };
    Ok(Arc::new(linked(topology, timeout, None)?))
}

/// The links of a leader to the others through MPI.
fn linked(
    topology: Topology,
    timeout: Duration,
    wait_hook: Option<WaitHook>,
) -> Result<InterNodeGroup, Error> {
    InterNodeGroup::linked(topology, Box::new(MpiLinks::open(topology)?), timeout, wait_hook)
}
