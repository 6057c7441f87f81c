//! A file that grows piece by piece under a temporary name, and gets its own when it is complete.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Error, NewFile, fs_calls, refuse_device, sync_parent, temporary_beside};

/// A file that is complete or absent: nothing is left of one that is dropped.
#[derive(Debug)]
pub struct AtomicFile {
    file: NewFile,
    temporary: PathBuf,
    path: PathBuf,
    is_complete: bool,
}

impl AtomicFile {
    /// Begins the file that will be at `path`, mode 0644 less the umask.
    pub fn create(path: &Path) -> Result<Self, Error> {
        refuse_device(path)?;
        let temporary = temporary_beside(path)?;
        let file = NewFile::create(&temporary)?;
        Ok(Self { file, temporary, path: path.to_owned(), is_complete: false })
    }

    /// Gives it its name, in place of an older file; it is on disk when this returns.
    ///
    /// # Errors
    ///
    /// Any step fails; the old file is then unchanged.
    pub fn complete(mut self) -> Result<(), Error> {
        self.file.sync()?;
        fs_calls::rename(&self.temporary, &self.path)
            .map_err(Error::io("rename to", &self.path))?;
        self.is_complete = true;
        sync_parent(&self.path)
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes).map(|()| bytes.len());
        written.map_err(|error| match error {
            Error::Io { reason, .. } => reason,
            other => io::Error::other(other),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.is_complete {
            // What is left of it is found by its name.
            drop(fs_calls::remove_file(&self.temporary));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_there_when_it_is_complete_and_leaves_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let mut file = AtomicFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!path.exists() && names() == 1);
        drop(file);
        assert_eq!(names(), 0);
        for text in ["one", "another"] {
            let mut file = AtomicFile::create(&path).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.complete().unwrap();
            assert_eq!((std::fs::read_to_string(&path).unwrap().as_str(), names()), (text, 1));
        }
    }
}
