//! The rank's side: its environment, what it inherits, and its link to the parent.

mod launcher_process;
mod launcher_env;
mod elastic_env;
pub mod env;
pub(in crate::launch) mod inherit;
pub(in crate::launch) mod status;
pub(in crate::launch) mod peer_monitor;
mod parent_watchdog;
pub(in crate::launch) mod link;
