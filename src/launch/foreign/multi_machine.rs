//! A rank that another launcher started beside ranks of other machines: it meets them itself, as a machine of one rank.

use std::fmt;

use crate::launch::Place;
use crate::launch::join::{Made, Membership};
use crate::launch::machines::node_rendezvous::{MeetError, io_error, meet};
use crate::launch::rank::env::Foreign;
use crate::launch::rank::link::Link;
use crate::launch::rank::peer_monitor::PeerMonitor;
use crate::plan::{Plan, RankPlan};

/// Takes this rank's place among those of all machines. Rank 0 makes the run by `make`, as in [`meet`]; who fails later
/// is seen by the others when its connections break, and by the launcher.
///
/// # Errors
///
/// As [`meet`].
pub fn join_machines<E: fmt::Display>(
    foreign: &Foreign,
    place: &Place,
    plan: &Plan,
    make: impl FnOnce() -> Result<Made, E>,
    say: &mut dyn FnMut(&str),
) -> Result<Membership, MeetError<E>> {
    let ((plan, run, resume), mut nodes) = meet(place, plan, make, say)?;
    let peers = nodes.take_peers().pop().unwrap_or_default();
    let (rank, restarts) = (foreign.rank, foreign.restarts);
    let link = Link::open(None, None, PeerMonitor::default(), rank, run.logs.clone());
    let link = link.map_err(io_error(place.node, "listen to signals"))?;
    // The launcher keeps to itself why it started the group again.
    let rank_plan = RankPlan { plan, rank, run, resume, restarts, causes: vec![] };
    Ok(Membership { rank_plan, shm: None, peers, link })
}
