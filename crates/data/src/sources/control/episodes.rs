//! Episodes in memory, and what their readers share.

use std::fs::File;
use std::ops::Range;
use std::path::Path;

use crate::error::Error;
use crate::read;
use crate::sources::control::images::Camera;

/// Episodes one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Episodes {
    /// Of each step.
    pub(super) observations: Vec<Vec<f32>>,
    pub(super) actions: Vec<Vec<f32>>,
    /// Of each camera.
    pub(super) cameras: Vec<Camera>,
    /// The step after the last one of each episode.
    pub(super) ends: Vec<usize>,
}

impl Episodes {
    /// The steps of each episode.
    pub(super) fn steps(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| start..end)
    }
}

/// A file of trajectories and its bytes; `expected` says what one holds.
pub(super) fn opened(path: &Path, expected: &'static str) -> Result<(File, u64), Error> {
    let failed = Error::reading("the file of trajectories", path, expected);
    let file = read::open(path).map_err(&failed)?;
    let bytes = file.metadata().map_err(&failed)?.len();
    Ok((file, bytes))
}

/// What is wrong with a column or array that has `value` in `row`, counted from 0.
pub(super) fn not_finite(value: impl std::fmt::Display, row: usize) -> String {
    format!("holds {value} in row {row}, not a finite 32-bit number")
}
