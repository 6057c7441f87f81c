//! The only code that writes files: whatever has a final name is complete.
//!
//! A file or folder is made under a temporary name beside its final one, written, synced, renamed,
//! and the folder that holds it is synced. A crash at any point leaves the old content or the new
//! one, and at worst a temporary that [`remove_stale_temporaries`] finds by its name. Logs grow at
//! their end ([`AppendFile`]), most of them by whole lines ([`LineFile`]). A run folder belongs to one
//! process at a time ([`RunLock`]).

mod append_file;
mod atomic_file;
mod follower;
mod fs_calls;
mod new_file;
mod reading;
mod run_lock;
mod temporary;
mod user_cache;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::failpoint;
use crate::user_error::{ExitCode, UserError};

pub use append_file::{AppendFile, LineFile};
pub use atomic_file::AtomicFile;
pub use follower::{Follower, NewLines};
pub use fs_calls::bytes_written;
pub use new_file::{NewFile, sync_together};
pub use reading::{DISK_TIMEOUT, open, read, read_line, read_lines, read_to_string, within};
pub use run_lock::{RunLock, is_unlocked, lock_holder, open_lock, take_turn};
use temporary::{is_in_use, temporary_beside};
pub use temporary::{is_temporary, random};
pub use user_cache::{user_cache, user_secret};

/// Suffix of a folder that makes way for its successor, on a file system that cannot exchange two:
/// `.<final name>` and this.
const ASIDE: &str = ".ddprun-old";

/// Error of a write. The operating system's reason is the source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {operation} `{}`", path.display())]
    Io {
        /// The operation that failed, as a verb: `create`, `sync` ...
        operation: &'static str,
        path: PathBuf,
        #[source]
        reason: io::Error,
    },
    /// Another process holds the run.
    #[error("`{}` is in use by {holder}", folder.display())]
    InUse {
        /// The folder of the run.
        folder: PathBuf,
        /// `pid 123 on host`
        holder: String,
    },
    /// Something that is not a link has the name of a link.
    #[error("`{}` exists and is not a link", path.display())]
    NotALink { path: PathBuf },
    /// A path that names no file, such as `/` or `..`.
    #[error("`{}` has no file name", path.display())]
    NoName { path: PathBuf },
}

impl Error {
    /// True if the file system, or the user's share of it, is full.
    pub fn is_out_of_space(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self, Self::Io { reason, .. } if matches!(reason.kind(), StorageFull | QuotaExceeded))
    }

    /// True if a link, a folder, a device or a pipe has the name of a file that is written.
    pub fn is_no_file(&self) -> bool {
        matches!(self, Self::Io { reason, .. } if reason.kind() == io::ErrorKind::InvalidInput)
    }

    /// The remedy for a full disk, else `otherwise`.
    pub fn help_or(&self, otherwise: &str) -> String {
        let full = "make room on that disk, and run the command again";
        if self.is_out_of_space() { full.to_owned() } else { otherwise.to_owned() }
    }

    /// True if a link could not be made because the file system has none, or because its name is
    /// taken.
    pub fn is_without_links(&self) -> bool {
        let has_none = |reason: &io::Error| {
            reason.raw_os_error() == Some(libc::EPERM)
                || reason.kind() == io::ErrorKind::Unsupported
        };
        match self {
            Self::Io { operation: "create the link", reason, .. } => has_none(reason),
            Self::NotALink { .. } => true,
            _ => false,
        }
    }

    /// The error and its cause in one line.
    pub fn with_cause(&self) -> String {
        let cause = std::error::Error::source(self);
        cause.map_or_else(|| self.to_string(), |cause| format!("{self}: {cause}"))
    }

    /// A closure that adds `operation` and `path` to an error of the operating system.
    pub fn io(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |reason| Self::Io { operation, path: path.to_owned(), reason }
    }
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::InUse { .. } => ExitCode::Refused,
            _ => ExitCode::Storage,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::InUse { .. } => Some("wait for that process, or stop it".to_owned()),
            Self::Io { operation: "lock", .. } => Some(
                "mount the file system of this folder with locks (NFS: a lock manager, or \
                 `local_lock=flock` where only one machine writes the folder, which is not so for \
                 a shared sweep; Lustre: `flock`), or choose another folder with `logging.dir`: \
                 without locks, two processes could write the same run"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// Writes `bytes` to `path`, mode 0644 less the umask. The old file stays whole until the new one
/// is on disk.
///
/// # Errors
///
/// Any step fails; the old file is then unchanged and the temporary is gone. Or a device or a pipe
/// is there, which would be replaced.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_with_mode(path, bytes, 0o644)
}

/// Writes a file as [`write_atomic`], for its user alone, as for a cache of someone's data.
pub fn write_private(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    write_with_mode(path, bytes, 0o600)
}

fn write_with_mode(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    refuse_device(path)?;
    let temporary = temporary_beside(path)?;
    let written = write_synced(&temporary, bytes, mode)
        .and_then(|()| fs_calls::rename(&temporary, path).map_err(Error::io("rename to", path)));
    match written {
        Ok(()) => sync_parent(path),
        Err(error) => {
            let _ = fs_calls::remove_file(&temporary);
            Err(error)
        }
    }
}

/// Writes `bytes` into a new file that its user alone can read.
pub fn write_secret(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(Error::io("create the file", path))?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.map_err(|reason| {
        drop(fs::remove_file(path));
        Error::io("write the file", path)(reason)
    })
}

/// Makes `to` a copy of the file `from`, or of what it has been so far where it grows. An old file
/// stays whole until the new one is on disk.
pub fn copy_atomic(from: &Path, to: &Path) -> Result<(), Error> {
    let opened = open(from).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (length, file) = opened.map_err(Error::io("read", from))?;
    let mut copy = AtomicFile::create(to)?;
    io::copy(&mut file.take(length), &mut copy).map_err(Error::io("write", to))?;
    copy.complete()
}

/// Makes the folder `path` from what `fill` writes, and syncs, into the folder that it is given;
/// all of it or nothing. A folder that already has the name is replaced.
///
/// # Errors
///
/// `fill` fails, or any step after it; there is then no new folder, and an old one is unchanged.
pub fn write_folder_atomic<T, E: From<Error>>(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    create_folder(parent_of(path))?;
    let temporary = temporary_beside(path)?;
    let made =
        fs_calls::make_folders(&temporary).map_err(Error::io("create the folder", &temporary));
    let filled = made.map_err(E::from).and_then(|_| {
        let value = fill(&temporary)?;
        sync(&temporary)?;
        Ok(value)
    });
    match filled {
        Ok(value) => replace_folder(&temporary, path).map(|()| value).map_err(E::from),
        Err(error) => {
            let _ = fs_calls::remove_folder(&temporary);
            Err(error)
        }
    }
}

/// Makes `link` a relative symbolic link to `target`, in one step for its readers. `target` need
/// not exist, its folder must. The link is on disk once its folder is synced.
///
/// # Errors
///
/// Something other than a link has that name, or a step fails; the old link is then unchanged.
pub fn swap_link(link: &Path, target: &Path) -> Result<(), Error> {
    if fs::symlink_metadata(link).is_ok_and(|found| !found.is_symlink()) {
        return Err(Error::NotALink { path: link.to_owned() });
    }
    let temporary = temporary_beside(link)?;
    let relative = relative_to(&resolved_parent(link)?, target)?;
    fs_calls::make_link(&relative, &temporary).map_err(Error::io("create the link", link))?;
    if let Err(reason) = fs_calls::rename(&temporary, link) {
        let _ = fs_calls::remove_file(&temporary);
        return Err(Error::io("replace the link", link)(reason));
    }
    Ok(())
}

/// Gives a folder another name, which nothing has, beside its own; on disk when it returns.
pub fn rename_folder(from: &Path, to: &Path) -> Result<(), Error> {
    fs_calls::rename(from, to).map_err(Error::io("rename to", to))?;
    sync_parent(to)
}

/// Gives a file, whose bytes are on disk, the name `to` in the same file system, and replaces what has it.
pub fn rename_file(from: &Path, to: &Path) -> Result<(), Error> {
    fs_calls::rename(from, to).map_err(Error::io("rename to", to))?;
    sync_parent(to)
}

/// Makes now the time at which a file was last changed.
pub fn touch(path: &Path) -> Result<(), Error> {
    let touched = File::options().append(true).open(path);
    touched
        .and_then(|file| file.set_modified(std::time::SystemTime::now()))
        .map_err(Error::io("touch", path))
}

pub fn remove_file(path: &Path) -> Result<(), Error> {
    fs_calls::remove_file(path).map_err(Error::io("remove", path))
}

/// Removes a folder: under its name it is whole or gone, also when the power goes.
pub fn remove_folder(path: &Path) -> Result<(), Error> {
    let temporary = temporary_beside(path)?;
    fs_calls::rename(path, &temporary).map_err(Error::io("remove", path))?;
    failpoint::reach("remove");
    sync_parent(path)?;
    fs_calls::remove_folder(&temporary).map_err(Error::io("remove", path))
}

/// Removes a folder in which nothing is, if nothing is.
pub fn remove_empty_folder(path: &Path) {
    drop(fs_calls::remove_empty_folder(path));
}

/// Removes the folder that `path` was in, if nothing else is.
pub fn remove_empty_parent(path: &Path) {
    if let Some(folder) = path.parent() {
        remove_empty_folder(folder);
    }
}

/// A folder, and those in it, hidden ones left out; none if it is not there.
pub fn folders_with_itself(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_folder = |entry: &fs::DirEntry| {
        let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
        !is_hidden && entry.file_type().is_ok_and(|kind| kind.is_dir())
    };
    let inner = entries.filter(is_folder).map(|entry| entry.path());
    let mut all: Vec<PathBuf> = std::iter::once(folder.to_owned()).chain(inner).collect();
    all[1..].sort();
    all
}

/// The folders in `folder` that [`remove_folder`] was removing when it was killed.
pub fn stale_folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_stale = |entry: &fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        is_folder && is_temporary(&name) && !is_in_use(&name)
    };
    let mut stale: Vec<PathBuf> = entries.filter(is_stale).map(|entry| entry.path()).collect();
    stale.sort();
    stale
}

/// Removes one of [`stale_folders`], or another folder that was never whole.
pub fn remove_leftover(path: &Path) -> Result<(), Error> {
    fs_calls::remove_folder(path).map_err(Error::io("remove", path))
}

/// Waits until the file, or the names in the folder, at `path` are on disk.
pub fn sync(path: &Path) -> Result<(), Error> {
    File::open(path).and_then(|file| fs_calls::sync(&file, path)).map_err(Error::io("sync", path))
}

/// Waits until all that was written to the file system of `path` is on disk: faster than file by file where there are
/// many.
pub fn sync_file_system(path: &Path) -> Result<(), Error> {
    let synced = File::open(path).and_then(|file| Ok(rustix::fs::syncfs(file)?));
    synced.map_err(Error::io("sync", path))
}

/// Makes a folder and those above it; their names are on disk.
pub fn create_folder(path: &Path) -> Result<(), Error> {
    let made = fs_calls::make_folders(path).map_err(Error::io("create the folder", path))?;
    made.into_iter().try_for_each(sync_parent)
}

/// Makes a folder that only its user can look into, and those above it.
pub fn create_private_folder(path: &Path) -> Result<(), Error> {
    create_parent(path)?;
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(reason) if reason.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => made.map_err(Error::io("create the folder", path)),
    }
}

/// Makes the folder of the file `path`, and those above it.
pub fn create_parent(path: &Path) -> Result<(), Error> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => create_folder(folder),
        None => Ok(()),
    }
}

/// Makes the folder if needed and writes a small file without a name into it, synced: a folder that
/// is read-only or full is found before training, not after the first epoch.
pub fn create_writable_folder(path: &Path) -> Result<(), Error> {
    let made = fs_calls::make_folders(path).map_err(Error::io("create the folder", path))?;
    made.iter().copied().try_for_each(sync_parent)?;
    let name = temporary_beside(&path.join("probe"))?;
    let written = fs_calls::make_nameless(path, &name).and_then(|mut probe| {
        probe.write_all(&vec![0; 64 << 10])?;
        probe.sync_all()
    });
    written.map_err(|reason| {
        // The innermost first.
        for folder in made {
            remove_empty_folder(folder);
        }
        Error::io("write into the folder", path)(reason)
    })
}

/// Makes a new folder beside `path`, for its user alone, which this process fills and removes; if
/// it is killed, the next one that writes there does.
///
/// # Errors
///
/// It cannot be made or written.
pub fn create_scratch_folder(path: &Path) -> Result<PathBuf, Error> {
    create_folder(parent_of(path))?;
    let scratch = temporary_beside(path)?;
    let made = fs::DirBuilder::new().mode(0o700).create(&scratch);
    made.map_err(Error::io("create the folder", &scratch))?;
    create_writable_folder(&scratch).inspect_err(|_| remove_empty_folder(&scratch))?;
    Ok(scratch)
}

/// Writes a new file into a scratch folder, without syncing it: only this process needs it.
///
/// # Errors
///
/// It exists, or cannot be written.
pub fn write_scratch(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let written = File::create_new(path).and_then(|mut file| file.write_all(bytes));
    written.map_err(Error::io("write", path))
}

/// Removes the temporaries that a killed process left in `folder`, and says how many; a folder that
/// had made way for one that never came has its name again. Those of a process that still runs
/// stay. Call it while holding the run's lock, before anything is written.
pub fn remove_stale_temporaries(folder: &Path) -> Result<usize, Error> {
    remove_temporaries(folder, ".")
}

/// Removes the temporaries that a process left when it was killed while it wrote `path`. No other
/// process may be writing `path` meanwhile.
pub fn remove_temporaries_of(path: &Path) -> Result<(), Error> {
    let Some(name) = path.file_name() else { return Ok(()) };
    remove_temporaries(parent_of(path), &format!(".{}.", name.to_string_lossy())).map(drop)
}

/// Removes stale temporaries as [`remove_stale_temporaries`], if their names begin with `prefix`,
/// the first sign of which is a dot.
fn remove_temporaries(folder: &Path, prefix: &str) -> Result<usize, Error> {
    let mut removed = 0;
    for entry in fs::read_dir(folder).map_err(Error::io("read the folder", folder))? {
        let entry = entry.map_err(Error::io("read the folder", folder))?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with(prefix) {
            continue;
        }
        if let Some(first) = name[1..].strip_suffix(ASIDE) {
            come_back(&path, &folder.join(first))?;
        } else if name.ends_with(temporary::MARK) {
            // A tag that another process is writing at this moment, say.
            if is_in_use(&name) {
                continue;
            }
            fs_calls::remove(&path).map_err(Error::io("remove", &path))?;
        } else {
            continue;
        }
        removed += 1;
    }
    Ok(removed)
}

/// Refuses a device or a pipe, such as /dev/null, also behind a link: a rename would put a file in
/// its place.
fn refuse_device(path: &Path) -> Result<(), Error> {
    let is_device = fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir());
    let refusal = || io::Error::other("it is a device or a pipe, not a file");
    if is_device { Err(Error::io("replace", path)(refusal())) } else { Ok(()) }
}

fn write_synced(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let mut file = NewFile::create_with_mode(path, mode)?;
    file.write(bytes)?;
    file.sync()
}

fn sync_parent(path: &Path) -> Result<(), Error> {
    sync(parent_of(path))
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// `rename` replaces an empty folder only; a filled one is exchanged with the new one and then
/// removed. The new name is on disk before anything is removed.
fn replace_folder(new: &Path, path: &Path) -> Result<(), Error> {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty};
    let is_filled = |reason: &io::Error| matches!(reason.kind(), DirectoryNotEmpty | AlreadyExists);
    match fs_calls::rename(new, path) {
        Err(reason) if is_filled(&reason) => replace_filled(new, path, fs_calls::exchange),
        renamed => renamed.map_err(Error::io("rename to", path)),
    }
    .inspect_err(|_| drop(fs_calls::remove_folder(new)))?;
    sync_parent(path)?;
    // After an exchange it is the old one.
    for old in [new.to_owned(), aside(path)?] {
        if old.exists() {
            fs_calls::remove_folder(&old).map_err(Error::io("remove", &old))?;
        }
    }
    Ok(())
}

/// Gives `new` the name of the filled folder `path`: in one step, or, where the file system has
/// none (NFS, many FUSE ones), in two. Between them the name is missing, and
/// [`remove_stale_temporaries`] gives it back.
fn replace_filled(
    new: &Path,
    path: &Path,
    exchange: impl FnOnce(&Path, &Path) -> io::Result<()>,
) -> Result<(), Error> {
    let lacks = |reason: &io::Error| {
        let known = [libc::EINVAL, libc::ENOSYS, libc::EOPNOTSUPP];
        reason.raw_os_error().is_some_and(|errno| known.contains(&errno))
    };
    match exchange(new, path) {
        Err(reason) if lacks(&reason) => {}
        exchanged => return exchanged.map_err(Error::io("rename to", path)),
    }
    let old = aside(path)?;
    if old.exists() {
        // Of a process that was killed after the new one had its name.
        fs_calls::remove_folder(&old).map_err(Error::io("remove", &old))?;
    }
    fs_calls::rename(path, &old).map_err(Error::io("rename", path))?;
    sync_parent(path)?;
    failpoint::reach("replace.aside");
    fs_calls::rename(new, path).map_err(Error::io("rename to", path)).inspect_err(|_| {
        // The old content is better than none.
        drop(fs_calls::rename(&old, path));
    })
}

/// Gives a folder that made way its name again, or removes it where its successor has it.
fn come_back(old: &Path, path: &Path) -> Result<(), Error> {
    if path.exists() {
        return fs_calls::remove_folder(old).map_err(Error::io("remove", old));
    }
    fs_calls::rename(old, path).map_err(Error::io("rename to", path))?;
    sync_parent(path)
}

/// The name under which the folder `path` makes way.
fn aside(path: &Path) -> Result<PathBuf, Error> {
    let name = path.file_name().ok_or_else(|| Error::NoName { path: path.to_owned() })?;
    let mut old = std::ffi::OsString::from(".");
    old.push(name);
    old.push(ASIDE);
    Ok(path.with_file_name(old))
}

fn resolved_parent(path: &Path) -> Result<PathBuf, Error> {
    let parent = parent_of(path);
    parent.canonicalize().map_err(Error::io("find the folder", parent))
}

/// The way from the resolved folder `from` to `target`, whose last part is not followed.
fn relative_to(from: &Path, target: &Path) -> Result<PathBuf, Error> {
    let name = target.file_name().ok_or_else(|| Error::NoName { path: target.to_owned() })?;
    let folder = resolved_parent(target)?;
    let shared = from.components().zip(folder.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(shared).map(|_| Path::new(".."));
    let down = folder.components().skip(shared);
    Ok(up.chain(down.map(|part| Path::new(part.as_os_str()))).collect::<PathBuf>().join(name))
}
#[cfg(test)]
mod tests;
