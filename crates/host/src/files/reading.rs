//! Files of run folders, which may come from someone else, read so that none can hold up its
//! reader.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

/// Largest file that is read whole; those that ddprun writes and reads whole are far smaller.
const LARGEST_WHOLE: u64 = 256 << 20;

/// Longest line that is read; a hole of gigabytes in a file is not.
pub(super) const LONGEST_LINE: u64 = 16 << 20;

/// Longest wait for a disk before a failure is reported without it.
pub const DISK_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns the result of `work`, unless that takes longer than `time`: on a disk that hangs it
/// never returns, and its thread stays behind. `None` also if no thread is left, or `work` panics.
pub fn within<T: Send + 'static>(
    time: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (done, result) = mpsc::channel();
    let thread = std::thread::Builder::new().name("disk".to_owned());
    thread.spawn(move || done.send(work())).ok()?;
    result.recv_timeout(time).ok()
}

/// Opens a regular file. A pipe would wait for its writer, a device for its data.
pub fn open(path: &Path) -> io::Result<File> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// Reads a regular file whole, if it is not larger than 256 MiB.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    let mut bytes = Vec::new();
    if length <= LARGEST_WHOLE {
        bytes.reserve_exact(length as usize);
        file.take(LARGEST_WHOLE + 1).read_to_end(&mut bytes)?;
    }
    if length.max(bytes.len() as u64) > LARGEST_WHOLE {
        let what = format!("it has {length} bytes, more than the {LARGEST_WHOLE} that are read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
    }
    Ok(bytes)
}

/// Reads on to the end of a line, as [`BufRead::read_until`] does, if it has at most 16 MiB.
pub fn read_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<usize> {
    let n = file.take(LONGEST_LINE).read_until(b'\n', line)?;
    if n as u64 == LONGEST_LINE && !line.ends_with(b"\n") {
        return Err(no_lines());
    }
    Ok(n)
}

/// Reads a regular file of lines whole, however many there are.
pub fn read_lines(path: &Path) -> io::Result<Vec<u8>> {
    let (mut file, mut lines) = (BufReader::new(open(path)?), Vec::new());
    while read_line(&mut file, &mut lines)? > 0 {}
    Ok(lines)
}

/// Error for a line that is longer than [`LONGEST_LINE`].
pub(super) fn no_lines() -> io::Error {
    let what = "it has a line of more than 16 MiB, so it is not a file of lines";
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads a text as [`read`].
pub fn read_to_string(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_hangs_is_waited_for_only_so_long() {
        let (end, wait) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(20), move || wait.recv()), None);
        drop(end);
        assert_eq!(within(Duration::from_mins(1), || 7), Some(7));
    }

    #[test]
    fn pipes_devices_folders_and_huge_files_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        File::create(at("sparse")).unwrap().set_len(3 << 30).unwrap();
        crate::files::write_atomic(&at("text"), b"whole").unwrap();
        for path in [at("pipe"), "/dev/zero".into(), folder.path().to_owned()] {
            assert_eq!(read(&path).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{path:?}");
        }
        assert_eq!(read(&at("sparse")).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_lines(&at("sparse")).unwrap_err().kind(), io::ErrorKind::InvalidData);
        crate::files::write_atomic(&at("lines"), b"one\ntwo\nthr").unwrap();
        assert_eq!(read_lines(&at("lines")).unwrap(), b"one\ntwo\nthr");
        assert_eq!(read(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(read_to_string(&at("text")).unwrap(), "whole");
    }
}
