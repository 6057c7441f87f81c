//! A run over several machines: their parents find each other, agree on the plan, and tell each
//! other how the run goes.

pub(in crate::launch) mod rendezvous;
pub(in crate::launch) mod compatibility;
pub(in crate::launch) mod joining;
mod wait_list;
pub(in crate::launch) mod nodes;
pub(in crate::launch) mod host;
pub(in crate::launch) mod node_rendezvous;
