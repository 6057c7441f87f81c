//! Reads a whole file of the user's, safely: never blocks on a FIFO, never maps memory that may
//! shrink.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::data::Error;

/// Largest encoded file that is read: 1 GiB.
const MAX_FILE_BYTES: u64 = 1 << 30;
/// Longest line of a text: 1 MiB.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Opens a regular file. A FIFO, socket or device is an error at once.
///
/// # Errors
///
/// The file is absent, not readable or not a regular file.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a FIFO waits for a writer that may never come.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

/// The file's bytes. A device error (EIO) is tried once more.
///
/// # Errors
///
/// As [`open`], or the file is larger than 1 GiB.
pub(crate) fn whole(path: &Path) -> io::Result<Vec<u8>> {
    match once(path) {
        Err(error) if error.raw_os_error() == Some(libc::EIO) => once(path),
        result => result,
    }
}

/// The bytes of a text, of which no line is longer than 1 MiB: a reader of lines needs no more
/// memory.
///
/// # Errors
///
/// As [`whole`]; a line that is longer, by its number.
pub(crate) fn lines(path: &Path) -> io::Result<Vec<u8>> {
    let bytes = whole(path)?;
    match bytes.split(|&byte| byte == b'\n').position(|line| line.len() > MAX_LINE_BYTES) {
        None => Ok(bytes),
        Some(before) => {
            let message = format!("line {} has more than {MAX_LINE_BYTES} bytes", before + 1);
            Err(io::Error::new(io::ErrorKind::InvalidData, message))
        }
    }
}

/// The bytes of a table, as [`lines`], without a byte order mark. Messages call the file `what`.
///
/// # Errors
///
/// As [`lines`].
pub(crate) fn table(
    what: &'static str,
    path: &Path,
    expected: &'static str,
) -> Result<Vec<u8>, Error> {
    let mut bytes = lines(path).map_err(Error::reading(what, path, expected))?;
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        drop(bytes.drain(..3));
    }
    Ok(bytes)
}

fn once(path: &Path) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > MAX_FILE_BYTES {
        let message = format!("{length} bytes are more than the {MAX_FILE_BYTES} that are read");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    // The file may grow while it is read.
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_or_device_is_an_error_and_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("pipe.jpg");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).unwrap();
        assert!(whole(&fifo).unwrap_err().to_string().contains("not a regular file"));
        assert!(whole(Path::new("/dev/zero")).is_err());
        assert!(whole(dir.path()).is_err());
    }
}
