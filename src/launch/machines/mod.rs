//! A run over several machines: their parents find each other, and tell each other how it goes.

pub(in crate::launch) mod nodes;
pub(in crate::launch) mod peer_connections;
pub(in crate::launch) mod node_rendezvous;
