//! A file that grows at its end, whatever is in it.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{Error, fs_calls, sync_parent};

/// A file that was opened for appending.
#[derive(Debug)]
pub struct Appended {
    pub(super) file: File,
    path: PathBuf,
}

impl Appended {
    /// Opens `path`, or makes it, mode 0644 less the umask.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let (file, is_new) = fs_calls::open_to_append(path).map_err(Error::io("open", path))?;
        if is_new {
            // What is on disk is lost if the file's name is not.
            sync_parent(path)?;
        }
        Ok(Self { file, path: path.to_owned() })
    }

    /// Appends `bytes` in one write.
    ///
    /// # Errors
    ///
    /// The write fails. A part of the bytes may stand in the file.
    pub fn append(&self, bytes: &[u8]) -> Result<(), Error> {
        fs_calls::write(&self.file, &self.path, bytes).map_err(Error::io("write", &self.path))
    }

    /// Waits until all bytes are on disk.
    pub fn sync(&self) -> Result<(), Error> {
        fs_calls::sync_data(&self.file, &self.path).map_err(Error::io("sync", &self.path))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}
