//! A file of lines that another process writes -> its lines, as they come.

use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Error;
use super::reading::{LONGEST_LINE, no_lines};

/// Follows one file, which need not be there yet.
#[derive(Debug)]
pub struct Follower {
    path: PathBuf,
    /// Bytes of whole lines that have been read.
    offset: u64,
    /// The file that they were read from: a resumed run replaces some of its files.
    file: Option<(u64, u64)>,
}

/// New lines of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewLines {
    /// True if the file was cut or replaced, so that its lines come from the first on.
    pub is_anew: bool,
    /// Whole lines, with their ends; bytes that are no UTF-8 are replaced.
    pub lines: String,
}

impl Follower {
    /// Follows the file at `path` from its first line on.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), offset: 0, file: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lines that were ended since the last look. Half a line waits for its end.
    pub fn poll(&mut self) -> Result<NewLines, Error> {
        self.look(false)
    }

    /// Reads as [`Follower::poll`], with a last line that has no end: nothing more will be written.
    pub fn poll_to_the_end(&mut self) -> Result<NewLines, Error> {
        self.look(true)
    }

    fn look(&mut self, is_last: bool) -> Result<NewLines, Error> {
        let failed = |reason| Error::io("read", &self.path)(reason);
        let mut file = match super::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(NewLines::default()),
            other => other.map_err(failed)?,
        };
        let found = file.metadata().map_err(failed)?;
        let number = (found.dev(), found.ino());
        let is_anew = self.file.is_some_and(|before| before != number) || found.len() < self.offset;
        if is_anew {
            self.offset = 0;
        }
        self.file = Some(number);
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(self.offset)).map_err(failed)?;
        loop {
            let n = (&mut file).take(LONGEST_LINE).read_to_end(&mut bytes).map_err(failed)?;
            if n as u64 == LONGEST_LINE && !bytes[bytes.len() - n..].contains(&b'\n') {
                return Err(failed(no_lines()));
            }
            if (n as u64) < LONGEST_LINE {
                break;
            }
        }
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        self.offset += whole as u64;
        let mut lines = String::from_utf8_lossy(&bytes[..whole]).into_owned();
        if is_last && whole < bytes.len() {
            lines += &String::from_utf8_lossy(&bytes[whole..]);
            lines.push('\n');
        }
        Ok(NewLines { is_anew, lines })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;
    use crate::files;

    #[test]
    fn lines_come_once_each_and_half_a_line_waits_for_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-0.log");
        let mut follower = Follower::new(&path);
        assert_eq!(follower.poll().unwrap(), NewLines::default());
        let mut file = File::create(&path).unwrap();
        let mut write = |text: &str| file.write_all(text.as_bytes()).unwrap();
        let mut lines = || follower.poll().unwrap().lines;
        write("one\ntw");
        assert_eq!((lines(), lines()), ("one\n".to_owned(), String::new()));
        write("o\nthree");
        assert_eq!(lines(), "two\n");
        assert_eq!(follower.poll_to_the_end().unwrap().lines, "three\n");
    }

    #[test]
    fn a_line_without_an_end_is_refused_before_memory_is_full_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        files::write_atomic(&path, b"one\n").unwrap();
        File::options().write(true).open(&path).unwrap().set_len(3 << 30).unwrap();
        let Err(Error::Io { reason, .. }) = Follower::new(&path).poll() else { panic!("no error") };
        assert_eq!(reason.kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn a_file_that_was_cut_or_replaced_is_told_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("epochs.jsonl");
        files::write_atomic(&path, b"one\ntwo\n").unwrap();
        let mut follower = Follower::new(&path);
        assert!(!follower.poll().unwrap().is_anew);
        // Longer than before, but another file.
        files::write_atomic(&path, b"uno\ndue\ntre\n").unwrap();
        let news = follower.poll().unwrap();
        assert_eq!((news.is_anew, news.lines.as_str()), (true, "uno\ndue\ntre\n"));
        File::options().write(true).open(&path).unwrap().set_len(4).unwrap();
        let news = follower.poll().unwrap();
        assert_eq!((news.is_anew, news.lines.as_str()), (true, "uno\n"));
        assert_eq!(follower.poll().unwrap(), NewLines::default());
    }
}
