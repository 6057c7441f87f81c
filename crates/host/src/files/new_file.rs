//! A large file in a folder that is still temporary: written piece by piece, while the disk works
//! on the pieces before.

use std::fs::{File, Metadata};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

use super::{Error, fs_calls};

/// Bytes after which the disk is set to work. With smaller pieces the disk is slower, with larger
/// ones it begins later.
const STRIDE: usize = 8 << 20;

/// A file that is being made.
#[derive(Debug)]
pub struct NewFile {
    file: File,
    path: PathBuf,
    written: u64,
    handed_over: u64,
}

impl NewFile {
    /// Makes the file, mode 0644 less the umask.
    pub fn create(path: &Path) -> Result<Self, Error> {
        Self::create_with_mode(path, 0o644)
    }

    /// Makes the file as [`NewFile::create`], with this mode less the umask.
    pub(super) fn create_with_mode(path: &Path, mode: u32) -> Result<Self, Error> {
        let file = fs_calls::make_file(path, mode).map_err(Error::io("create", path))?;
        Ok(Self { file, path: path.to_owned(), written: 0, handed_over: 0 })
    }

    /// Makes a file of what is in `from`, which was opened at the path `origin`: another name of
    /// the same file, where it still has that path and the file system has hard links, else a copy.
    pub fn link_or_copy(from: &File, origin: &Path, path: &Path) -> Result<(), Error> {
        let is_same = |found: &Path| {
            let found = found.metadata();
            let from = from.metadata();
            found.is_ok_and(|found| from.is_ok_and(|from| same(&found) == same(&from)))
        };
        if fs_calls::make_hard_link(origin, path).is_ok() {
            if is_same(path) {
                return Ok(());
            }
            fs_calls::remove_file(path).map_err(Error::io("remove", path))?;
        }
        Self::copy(from, origin, path)
    }

    /// Makes a copy of the file that was opened at the path `origin`; it is on disk when this
    /// returns.
    pub fn copy(from: &File, origin: &Path, path: &Path) -> Result<(), Error> {
        let mut file = Self::create(path)?;
        let mut buffer = vec![0; STRIDE];
        let mut at = 0;
        loop {
            let n = from.read_at(&mut buffer, at).map_err(Error::io("read", origin))?;
            if n == 0 {
                return file.sync();
            }
            file.write(&buffer[..n])?;
            at += n as u64;
        }
    }

    /// Appends `bytes`.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for piece in bytes.chunks(STRIDE) {
            fs_calls::write(&self.file, &self.path, piece)
                .map_err(Error::io("write", &self.path))?;
            self.written += piece.len() as u64;
            if self.written - self.handed_over >= STRIDE as u64 {
                self.hand_over();
            }
        }
        Ok(())
    }

    /// Waits until the file is on disk.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        fs_calls::sync(&self.file, &self.path).map_err(Error::io("sync", &self.path))
    }

    /// Sets the disk to work on what was written since the last call. Linux begins to write pages
    /// that are said to be no longer needed, without waiting for them; a file system that does not
    /// loses speed, nothing else.
    fn hand_over(&mut self) {
        let length = NonZeroU64::new(self.written - self.handed_over);
        let _ = fadvise(&self.file, self.handed_over, length, Advice::DontNeed);
        self.handed_over = self.written;
    }
}

/// Identity of a file: device and inode.
fn same(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Waits until all of `files` are on disk: together, so that one commit of the journal serves them
/// all.
pub fn sync_together(files: &[NewFile]) -> Result<(), Error> {
    std::thread::scope(|scope| {
        let begin = |file| {
            // Where no thread is to be had, one after the other.
            let thread =
                std::thread::Builder::new().spawn_scoped(scope, move || NewFile::sync(file));
            thread.map_err(|_| file.sync())
        };
        let begun: Vec<_> = files.iter().map(begin).collect();
        begun.into_iter().try_for_each(|begun| match begun {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(done) => done,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_deleted_or_replaced_is_copied_from_where_it_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        crate::files::write_atomic(&at("model"), b"weights").unwrap();
        let open = File::open(at("model")).unwrap();
        NewFile::link_or_copy(&open, &at("model"), &at("linked")).unwrap();
        assert_eq!(at("linked").metadata().unwrap().nlink(), 2);
        crate::files::write_atomic(&at("model"), b"others").unwrap();
        NewFile::link_or_copy(&open, &at("model"), &at("replaced")).unwrap();
        crate::files::remove_file(&at("model")).unwrap();
        NewFile::link_or_copy(&open, &at("model"), &at("deleted")).unwrap();
        for name in ["linked", "replaced", "deleted"] {
            assert_eq!(std::fs::read(at(name)).unwrap(), b"weights", "{name}");
        }
    }

    #[test]
    fn pieces_of_any_length_become_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let mut file = NewFile::create(&path).unwrap();
        let pieces = [vec![1; 5], vec![2; 2 * STRIDE + 3], vec![], vec![3; STRIDE - 1]];
        for piece in &pieces {
            file.write(piece).unwrap();
        }
        sync_together(&[file]).unwrap();
        assert!(std::fs::read(&path).unwrap() == pieces.concat());
        let Error::Io { reason, .. } = NewFile::create(&path).unwrap_err() else { panic!() };
        assert_eq!(reason.kind(), std::io::ErrorKind::AlreadyExists);
    }
}
