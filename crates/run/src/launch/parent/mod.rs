//! The parent of the ranks: starts them, watches them, and starts them again after a failure.

pub(in crate::launch) mod options;
mod oom_kills;
mod stall;
mod group;
mod verdict;
pub(in crate::launch) mod recovery;
pub(super) mod spawn;
mod watch;
pub(in crate::launch) mod run;
