//! One process per run: an advisory lock on `.lock` in the run's folder, held until the value is
//! dropped or the process is gone, however it ends. Where several processes share the work in a
//! folder, each holds the lock of its share.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Error;

/// Longest wait for a lock that another process has.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// The right to write into a run's folder.
#[derive(Debug)]
pub struct RunLock {
    // Closing the file releases the lock. Children do not inherit it, so none can outlive the
    // holder with it.
    file: File,
}

impl RunLock {
    /// Takes the lock of `folder`, and writes into it which process this is.
    ///
    /// # Errors
    ///
    /// [`Error::InUse`] with the other process; or the lock cannot be made.
    pub fn acquire(folder: &Path) -> Result<Self, Error> {
        Self::acquire_named(folder, ".lock")
    }

    /// Acquires the lock as [`RunLock::acquire`], on the file `name` of the folder, for a part of
    /// the work there.
    pub fn acquire_named(folder: &Path, name: &str) -> Result<Self, Error> {
        let path = folder.join(name);
        let mut file = open_lock(&path).map_err(Error::io("open", &path))?;
        lock(&file, folder, &path)?;
        write_holder(&mut file).map_err(Error::io("write", &path))?;
        Ok(Self { file })
    }

    /// Takes the lock of `folder` in order to remove it: writes nothing, so that it can be taken on
    /// a full disk. `None` if there is no lock, as nothing has run there.
    pub fn to_remove(folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join(".lock");
        let open = |writes| {
            let mut options = OpenOptions::new();
            options.read(true).write(writes).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
            options.open(&path)
        };
        // Some file systems lock only what can be written; others are read-only.
        let file = match open(true).or_else(|_| open(false)) {
            Err(reason) if reason.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(Error::io("open", &path))?,
        };
        lock(&file, folder, &path)?;
        Ok(Some(Self { file }))
    }
}

/// Opens a file to be locked, and makes it if needed; what is in it stays. A link could lead to any
/// file of this user, and others could hold a lock that they can open.
pub fn open_lock(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

fn lock(file: &File, folder: &Path, path: &Path) -> Result<(), Error> {
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err(Error::io("lock", path)(std::io::Error::other("it is not a regular file")));
    }
    match patiently(file, LOCK_TIMEOUT) {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(Error::InUse { folder: folder.to_owned(), holder: read_holder(file) })
        }
        Err(TryLockError::Error(reason)) => Err(Error::io("lock", path)(reason)),
    }
}

/// Longest wait for other processes that make something in a folder.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits for this process's turn to look what is in the folder `path` and to make something there,
/// which it has until the value is dropped. The folder is made if needed. Where it cannot be locked
/// there are no turns.
pub fn take_turn(path: &Path) -> Result<Option<File>, Error> {
    super::create_folder(path)?;
    let Ok(folder) = File::open(path) else { return Ok(None) };
    Ok(patiently(&folder, TURN_TIMEOUT).is_ok().then_some(folder))
}

/// Takes the lock. A process that only looks whether it is held ([`lock_holder`]) holds it for a
/// moment, which is waited for.
fn patiently(file: &File, timeout: Duration) -> Result<(), TryLockError> {
    let given_up = Instant::now() + timeout;
    loop {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) if Instant::now() < given_up => {
                std::thread::sleep(LOCK_TIMEOUT / 100);
            }
            taken => return taken,
        }
    }
}

/// Holder of the lock of `folder`, `pid 123 on host`; `None` if it is free.
pub fn lock_holder(folder: &Path) -> Option<String> {
    let path = folder.join(".lock");
    let file = match super::open(&path) {
        // The lock of another user's run; its holder's name is in it while the run lasts.
        Err(reason) if reason.kind() == std::io::ErrorKind::PermissionDenied => {
            let has_name = path.symlink_metadata().is_ok_and(|found| found.len() > 0);
            return has_name.then(|| "a process of another user".to_owned());
        }
        opened => opened.ok()?,
    };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Some(read_holder(&file)),
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}

/// True if no process has the lock of `folder`; `false` if that cannot be known.
pub fn is_unlocked(folder: &Path) -> bool {
    match super::open(&folder.join(".lock")) {
        Ok(file) => file.try_lock_shared().is_ok(),
        Err(reason) => reason.kind() == ErrorKind::NotFound,
    }
}

impl Drop for RunLock {
    /// Empties the file; removing it would let two processes lock two files of the same name.
    fn drop(&mut self) {
        let _ = self.file.set_len(0);
    }
}

fn write_holder(file: &mut File) -> std::io::Result<()> {
    let host = rustix::system::uname();
    let holder = format!("pid {} on {}", std::process::id(), host.nodename().to_string_lossy());
    file.set_len(0)?;
    file.write_all(holder.as_bytes())
}

fn read_holder(mut file: &File) -> String {
    let mut holder = String::new();
    match file.read_to_string(&mut holder) {
        Ok(length) if length > 0 => holder,
        // The other process has the lock and has not yet written its name.
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_refused_and_told_who_has_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let lock = RunLock::acquire(folder.path()).unwrap();
        let refused = RunLock::acquire(folder.path()).unwrap_err().to_string();
        let holder = format!("is in use by pid {} on ", std::process::id());
        assert!(refused.contains(&holder), "{refused}");
        assert!(lock_holder(folder.path()).unwrap().starts_with(&holder[13..]));
        drop(lock);
        assert_eq!(lock_holder(folder.path()), None);
        let _again = RunLock::acquire(folder.path()).unwrap();
    }

    #[test]
    fn a_link_in_the_place_of_the_lock_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("precious");
        crate::files::write_atomic(&other, b"text").unwrap();
        std::os::unix::fs::symlink(&other, folder.path().join(".lock")).unwrap();
        let refused = RunLock::acquire(folder.path()).unwrap_err();
        assert!(matches!(refused, Error::Io { operation: "open", .. }), "{refused:?}");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "text");
    }

    #[test]
    fn others_cannot_open_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let lock = RunLock::acquire(folder.path()).unwrap();
        let mode = std::os::unix::fs::MetadataExt::mode(&lock.file.metadata().unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_is_to_be_removed_is_locked_without_a_write() {
        let folder = tempfile::tempdir().unwrap();
        assert!(RunLock::to_remove(folder.path()).unwrap().is_none(), "nothing has run there");
        let running = RunLock::acquire(folder.path()).unwrap();
        let refused = RunLock::to_remove(folder.path()).unwrap_err();
        assert!(matches!(refused, Error::InUse { .. }), "{refused}");
        drop(running);
        let lock = RunLock::to_remove(folder.path()).unwrap().unwrap();
        assert_eq!(folder.path().join(".lock").metadata().unwrap().len(), 0);
        let refused = RunLock::acquire(folder.path()).unwrap_err();
        assert!(matches!(refused, Error::InUse { .. }), "{refused}");
        drop(lock);
    }

    #[test]
    fn who_makes_something_in_a_folder_waits_for_those_that_do() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("logs/small");
        let turn = take_turn(&inner).unwrap();
        assert!(turn.is_some());
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _turn = take_turn(&inner).unwrap();
                inner.join("made").is_file()
            });
            File::create(inner.join("made")).unwrap();
            drop(turn);
            assert!(other.join().unwrap(), "the other did not wait");
        });
    }

    #[test]
    fn a_run_can_be_started_while_others_look_whether_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        drop(RunLock::acquire(folder.path()).unwrap());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        lock_holder(folder.path());
                    }
                });
            }
            let taken = (0..200).all(|_| RunLock::acquire(folder.path()).is_ok());
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(taken);
        });
    }
}
