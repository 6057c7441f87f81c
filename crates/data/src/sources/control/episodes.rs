//! Episodes in memory, the trait of what reads them, and what its readers share.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::read;
use crate::sources::control::images::Camera;

/// Episodes one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Episodes {
    /// One row for each step.
    pub(super) observations: Vec<Vec<f32>>,
    pub(super) actions: Vec<Vec<f32>>,
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

/// Reads one form of stored trajectories.
pub(super) trait TrajectoryReader: Sync {
    /// True if the file or folder `path` has this form.
    fn reads(&self, path: &Path) -> bool;

    /// All episodes, with the images of `cameras`.
    fn episodes(&self, path: &Path, cameras: &[String]) -> Result<Episodes, Error>;

    /// Cameras whose images can be read beside the numbers.
    fn cameras(&self, path: &Path) -> Result<Vec<String>, Error>;

    /// Files with numbers, and those with images of `cameras`, below the folder `path`.
    fn files(&self, path: &Path, cameras: &[String]) -> Result<[Vec<PathBuf>; 2], Error>;
}

/// A file of trajectories and its bytes; `expected` says what one holds.
pub(super) fn opened(path: &Path, expected: &'static str) -> Result<(File, u64), Error> {
    let failed = Error::reading("the file of trajectories", path, expected);
    let file = read::open(path).map_err(&failed)?;
    let bytes = file.metadata().map_err(&failed)?.len();
    Ok((file, bytes))
}

/// Describes a `value` that is not finite, in `row` of a column or array, counted from 0.
pub(super) fn not_finite(value: impl std::fmt::Display, row: usize) -> String {
    format!("holds {value} in row {row}, not a finite 32-bit number")
}
