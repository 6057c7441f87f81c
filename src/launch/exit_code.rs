//! The exit codes of ranks and of the program (docs/runs.md).

/// Done, or nothing was left to do.
pub(crate) const OK: u8 = 0;
/// Experiment or command line refused.
pub(crate) const REFUSED: u8 = 2;
/// Data unusable.
pub(crate) const DATA: u8 = 3;
/// Numbers not finite.
pub(crate) const NUMERIC: u8 = 4;
/// Rendezvous, peer or collective.
pub(crate) const PEER: u8 = 5;
/// Storage.
pub(crate) const STORAGE: u8 = 6;
/// Checkpoint unusable.
pub(crate) const CHECKPOINT: u8 = 7;
/// Out of a resource.
pub(crate) const RESOURCE: u8 = 8;
/// Expectation missed.
pub(crate) const EXPECTATION: u8 = 9;
/// Our bug.
pub(crate) const BUG: u8 = 70;
/// Stopped by request and saved.
pub(crate) const PREEMPTED: u8 = 75;
/// A rank left so that its group can come back with more ranks; never the code of the program.
pub(crate) const RESIZED: u8 = 76;
/// Ctrl-C and saved.
pub(crate) const INTERRUPTED: u8 = 130;
