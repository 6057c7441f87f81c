//! Whether a file or folder is still what it was when something that is kept was read from it.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

/// Age of the last change of a file or folder from which on its times tell every later change: the
/// clock of its file system may not have moved on since a younger one.
pub(crate) const SETTLED: Duration = Duration::from_secs(5);

/// Text that identifies the state of a file or folder. Making, removing or renaming anything in a
/// folder changes it.
pub(crate) fn stamp(meta: &Metadata) -> String {
    let mtime = meta.mtime();
    let mtime_ns = meta.mtime_nsec();
    let ctime = meta.ctime();
    let ctime_ns = meta.ctime_nsec();
    let device = meta.dev();
    let inode = meta.ino();
    let size = meta.size();
    let links = meta.nlink();
    format!("{device} {inode} {mtime}.{mtime_ns} {ctime}.{ctime_ns} {size} {links}")
}

/// True if the last change was at least `age` before reading `began`.
pub(crate) fn is_settled(meta: &Metadata, began: SystemTime, age: Duration) -> bool {
    let last = [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())];
    let since = |(seconds, nanoseconds): (i64, i64)| {
        let time = Duration::new(seconds.try_into().ok()?, nanoseconds.try_into().ok()?);
        began.duration_since(SystemTime::UNIX_EPOCH + time).ok()
    };
    last.into_iter().all(|time| since(time).is_some_and(|since| since >= age))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_settled_once_its_last_change_is_old_enough() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let meta = file.path().metadata().unwrap();
        let changed = SystemTime::UNIX_EPOCH
            + Duration::new(
                meta.ctime().try_into().unwrap(),
                meta.ctime_nsec().try_into().unwrap(),
            );
        let is_settled_after = |wait| is_settled(&meta, changed + wait, SETTLED);
        assert!(!is_settled_after(Duration::from_millis(4_999)));
        assert!(is_settled_after(SETTLED));
        // A change after reading began.
        assert!(!is_settled(&meta, SystemTime::UNIX_EPOCH, Duration::ZERO));
    }
}
