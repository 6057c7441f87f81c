//! A run over several machines: their parents find each other, agree on the plan, and tell each
//! other how the run goes.

pub(in crate::launch) mod meeting;
pub(in crate::launch) mod compatibility;
pub(in crate::launch) mod greeting;
mod door;
pub(in crate::launch) mod nodes;
pub(in crate::launch) mod host;
pub(in crate::launch) mod node_rendezvous;
