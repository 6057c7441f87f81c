//! A rank's place in its group.

use std::os::fd::OwnedFd;

use crate::launch::rank::link::Link;
use crate::plan::RankPlan;
use crate::transport::Peer;

/// What a rank needs to take part in its group.
pub struct Membership {
    /// What to do.
    pub rank_plan: RankPlan,
    /// The memory that the ranks of this machine share; absent if they share none.
    pub shm: Option<OwnedFd>,
    /// The first ranks of the other machines, for the first one of this.
    pub peers: Vec<Peer>,
    /// Progress, errors and requests to stop.
    pub link: Link,
}
