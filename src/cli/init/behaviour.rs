//! Recorded behaviour, and the cameras that saw it.

use std::path::Path;

use crate::cli::Refusal;
use crate::cli::init::recognised::{Recognised, Task, path};
use crate::{data, worker};

/// Observations and actions of an npz or parquet file, or of a folder of `LeRobot`.
pub(super) fn recorded(at: &Path) -> Result<Recognised, Refusal> {
    let cameras = data::cameras(at)
        .map_err(|error| Refusal::of(worker::of_data(&error), &error, error.help()))?;
    let mut options = vec![("file", path(at))];
    if !cameras.is_empty() {
        options.push(("cameras", cameras.into()));
    }
    Ok(Recognised::new("trajectories", &options, Task::Behaviour))
}
