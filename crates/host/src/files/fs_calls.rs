//! The calls that change a file system. With the feature `failpoints` they can be noted, so that a
//! test can ask what is left of them when the power goes (`tests/cli/power_loss.rs`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with};

use crate::failpoint::note;

/// Makes a folder and those above it. Returns what was not there, innermost first.
pub(super) fn make_folders(path: &Path) -> io::Result<Vec<&Path>> {
    let is_there = |folder: &Path| folder.as_os_str().is_empty() || folder.exists();
    let missing: Vec<&Path> = path.ancestors().take_while(|folder| !is_there(folder)).collect();
    fs::create_dir_all(path)?;
    missing.iter().rev().for_each(|folder| note("make folder", &[folder], b""));
    Ok(missing)
}

/// Makes a file that is not there, with this mode less the umask.
pub(super) fn make_file(path: &Path, mode: u32) -> io::Result<File> {
    let made = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    note("make file", &[path], b"");
    Ok(made)
}

/// Makes a file in `folder` that has no name, so that nothing of it is left however this process
/// ends. Where file systems need a name it has `name` for a moment.
pub(super) fn make_nameless(folder: &Path, name: &Path) -> io::Result<File> {
    use rustix::io::Errno;
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    match rustix::fs::open(folder, flags, Mode::from_raw_mode(0o644)) {
        Ok(file) => Ok(File::from(file)),
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(name)?;
            fs::remove_file(name)?;
            Ok(file)
        }
        Err(reason) => Err(reason.into()),
    }
}

/// Opens a file for reading and appending, and makes it if needed, mode 0644 less the umask. Says
/// whether it was made. A link in a folder that came from elsewhere could lead to any file.
pub(super) fn open_to_append(path: &Path) -> io::Result<(File, bool)> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).mode(0o644);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    match options.open(path) {
        Err(reason) if reason.kind() == ErrorKind::NotFound => {}
        Err(reason) if reason.raw_os_error() == Some(libc::ELOOP) => {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it is a link"));
        }
        opened => {
            let file = opened?;
            let is_file = file.metadata()?.is_file();
            return if is_file {
                Ok((file, false))
            } else {
                Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"))
            };
        }
    }
    let made = options.create(true).open(path)?;
    note("make file", &[path], b"");
    Ok((made, true))
}

/// Bytes that this process has written.
static WRITTEN: AtomicU64 = AtomicU64::new(0);

/// Bytes that this process has written into files: while the number grows, a disk is not hanging.
pub fn bytes_written() -> u64 {
    WRITTEN.load(Ordering::Relaxed)
}

/// Writes to the end of what was written.
pub(super) fn write(mut file: &File, path: &Path, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    WRITTEN.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    note("write", &[path], bytes);
    Ok(())
}

/// Waits until the file, or the names in the folder, are on disk.
pub(super) fn sync(file: &File, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    note("sync", &[path], b"");
    Ok(())
}

/// Syncs as [`sync`], without the times of the file.
pub(super) fn sync_data(file: &File, path: &Path) -> io::Result<()> {
    file.sync_data()?;
    note("sync", &[path], b"");
    Ok(())
}

pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    note("rename", &[from, to], b"");
    Ok(())
}

pub(super) fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?;
    note("exchange", &[one, other], b"");
    Ok(())
}

pub(super) fn make_link(target: &Path, link: &Path) -> io::Result<()> {
    symlink(target, link)?;
    note("make link", &[link], target.as_os_str().as_encoded_bytes());
    Ok(())
}

/// Gives a file a second name.
pub(super) fn make_hard_link(file: &Path, name: &Path) -> io::Result<()> {
    fs::hard_link(file, name)?;
    note("make hard link", &[file, name], b"");
    Ok(())
}

pub(super) fn remove_file(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    note("remove", &[path], b"");
    Ok(())
}

pub(super) fn remove_empty_folder(path: &Path) -> io::Result<()> {
    fs::remove_dir(path)?;
    note("remove", &[path], b"");
    Ok(())
}

/// Removes a file, a link, or a folder and everything in it.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let is_folder = path.symlink_metadata().is_ok_and(|found| found.is_dir());
    if is_folder { remove_folder(path) } else { remove_file(path) }
}

/// Removes a folder and everything in it.
pub(super) fn remove_folder(path: &Path) -> io::Result<()> {
    fs::remove_dir_all(path)?;
    note("remove", &[path], b"");
    Ok(())
}
