//! The parent of the ranks: starts them, watches them, and starts them again.

mod oom_kills;
pub(in crate::launch) mod stall;
pub(in crate::launch) mod group;
pub(in crate::launch) mod verdict;
mod restart;
mod elastic;
pub(in crate::launch) mod recovery;
pub(in crate::launch) mod spawn;
mod watch;
pub(in crate::launch) mod run;
