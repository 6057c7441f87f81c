//! What reads a form of stored trajectories.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::sources::control::episodes::Episodes;

/// Reads one form of stored trajectories.
pub(super) trait TrajectoryReader: Sync {
    /// Whether the file or folder `path` has this form.
    fn reads(&self, path: &Path) -> bool;

    /// All episodes, with the images of `cameras`.
    fn episodes(&self, path: &Path, cameras: &[String]) -> Result<Episodes, Error>;

    /// Cameras whose images can be read beside the numbers.
    fn cameras(&self, path: &Path) -> Result<Vec<String>, Error>;

    /// Files with numbers, and those with images of `cameras`, below the folder `path`.
    fn files(&self, path: &Path, cameras: &[String]) -> Result<[Vec<PathBuf>; 2], Error>;
}
