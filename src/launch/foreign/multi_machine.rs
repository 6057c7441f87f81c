//! A rank that another launcher started beside ranks of other machines: it finds them itself, as a
//! machine of one rank.

use std::fmt;

use crate::launch::foreign::mpi::start_mpi;
use crate::launch::machines::node_rendezvous::{NodeRendezvousError, io_error, join_nodes};
use crate::launch::machines::nodes::NodeConfig;
use crate::launch::prepared_run::PreparedRun;
use crate::launch::rank::env::Foreign;
use crate::launch::rank::link::Link;
use crate::launch::rank::membership::Membership;
use crate::launch::rank::peer_monitor::PeerMonitor;
use crate::plan::{BackendPlan, Plan, RankPlan};

/// Joins this rank with those of all machines. Rank 0 prepares the run by `prepare`, as in
/// [`join_nodes`]. The others notice a later failure when its connections break, as does the
/// launcher.
///
/// # Errors
///
/// As [`join_nodes`].
pub(crate) fn join_machines<E: fmt::Display>(
    foreign: &Foreign,
    config: &NodeConfig,
    plan: &Plan,
    prepare: impl FnOnce() -> Result<PreparedRun, E>,
    report: &mut dyn FnMut(&str),
) -> Result<Membership, NodeRendezvousError<E>> {
    let (prepared, mut nodes) = join_nodes(config, plan, prepare, report)?;
    let PreparedRun { plan, folders: run, resume } = prepared;
    if plan.distributed.backend == BackendPlan::Mpi {
        start_mpi(foreign)
            .map_err(|error| NodeRendezvousError::Refused { reason: error.to_string() })?;
    }
    let peers = nodes.take_peers();
    let (rank, restarts) = (foreign.rank, foreign.restarts);
    let link = Link::open(None, None, PeerMonitor::default(), rank, run.logs.clone());
    let link = link.map_err(io_error(config.node, "listen to signals"))?;
    // The launcher does not tell why it started the group again.
    let rank_plan = RankPlan { plan, rank, run, resume, restarts, causes: vec![] };
    Ok(Membership { rank_plan, shm: None, peers, link })
}
