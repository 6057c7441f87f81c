//! `tcp`: the ranks of a machine add in shared memory, and their first ones between machines.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::collective::backends::{Backend, JoiningRank};
// Without CUDA there is nothing that a group controls.
#[cfg(not(feature = "cuda"))]
use crate::collective::Collective as Control;
#[cfg(feature = "cuda")]
use crate::collective::device_group::Control;
use crate::collective::hierarchical_group::HierarchicalGroup;
use crate::collective::inter_node_group::InterNodeGroup;
use crate::collective::{Collective, Error};
use crate::config::kind::Kind;
use crate::plan::{BackendCapabilities, BackendFacts, SharedMemory};
use crate::transport::Peer;
use crate::units::{Rank, WorldSize};

/// Several machines (`--nnodes`), through the CPUs' memory.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TcpBackend {}

impl Kind for TcpBackend {
    const NAME: &'static str = "tcp";
}

impl Backend for TcpBackend {
    fn facts(&self) -> BackendFacts {
        let label = Some("TCP".to_owned());
        BackendFacts {
            one_machine: None,
            several_machines: Some(SharedMemory::Gradients),
            is_automatic: true,
            // This rank's share of the largest bucket, as each rank has it: no more than a bucket.
            capabilities: BackendCapabilities { label, bucket_copies: 1, ..Default::default() },
            ..BackendFacts::named(Self::NAME)
        }
    }

    fn open(&self, rank: JoiningRank<'_>) -> Result<Arc<dyn Collective>, Error> {
        let group: Arc<dyn Collective> = through_connections(rank)?;
        Ok(group)
    }
}

/// Joins the ranks of several machines through the connections between the first ones.
///
/// # Errors
///
/// [`Error::Connections`] and [`Error::Mapping`]: a connection or the memory is missing, or cannot
/// be used.
pub(super) fn through_connections(joining: JoiningRank<'_>) -> Result<Arc<dyn Control>, Error> {
    let JoiningRank { plan, rank, .. } = joining;
    let (world, timeout) = (plan.world_size, plan.timeout);
    let (local, peers) = joining.machine()?;
    let Some(local) = local else {
        return Ok(Arc::new(InterNodeGroup::open(rank, world, peers, timeout)?));
    };
    let connect = |topology, timeout, wait_hook| {
        InterNodeGroup::connected(topology, peers, timeout, wait_hook)
    };
    Ok(Arc::new(HierarchicalGroup::open(rank, world, local, timeout, connect)?))
}

/// Joins a group whose ranks share no memory, through the connections to all other ranks. No rank
/// waits longer than `timeout` for another that makes no progress.
///
/// # Errors
///
/// [`Error::Connections`]: a connection is missing, or cannot be used.
pub fn open_tcp(
    rank: Rank,
    world: WorldSize,
    peers: Vec<Peer>,
    timeout: Duration,
) -> Result<Arc<dyn Collective>, Error> {
    Ok(Arc::new(InterNodeGroup::open(rank, world, peers, timeout)?))
}
