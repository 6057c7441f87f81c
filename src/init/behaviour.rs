//! Recorded behaviour, and the cameras that saw it.

use std::path::Path;

use crate::data;
use crate::init::recognised::{Recognised, Task, path};
use crate::user_error::ErrorPage;

/// Observations and actions of an npz or parquet file, or of a folder of `LeRobot`.
pub(super) fn recorded(at: &Path) -> Result<Recognised, ErrorPage> {
    let cameras = data::cameras(at)?;
    let mut options = vec![("file", path(at))];
    if !cameras.is_empty() {
        options.push(("cameras", cameras.into()));
    }
    Ok(Recognised::new("trajectories", &options, Task::Behaviour))
}
