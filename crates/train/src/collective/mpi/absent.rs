//! A build without the feature `mpi`: no rank starts MPI.

use std::sync::Arc;
use std::time::Duration;

use crate::collective::mpi::launcher::{Launcher, StartError};
use crate::collective::{Collective, Error};
use crate::units::{Rank, WorldSize};

/// Refuses every launcher.
pub fn check(_launcher: &Launcher) -> Result<(), StartError> {
    Err(StartError::NotBuilt)
}

/// Refuses every launcher.
pub fn start(_launcher: &Launcher, _rank: Rank, _world: WorldSize) -> Result<(), StartError> {
    Err(StartError::NotBuilt)
}

/// Opens no group.
pub fn open_mpi(
    _rank: Rank,
    _world: WorldSize,
    _timeout: Duration,
) -> Result<Arc<dyn Collective>, Error> {
    Err(Error::Mpi { what: StartError::NotBuilt.to_string() })
}

/// Does nothing, as MPI was never started.
pub fn leave() {}

/// Does nothing, as MPI was never started.
pub fn abort(_code: u8) {}
