//! Files that grow at their end: of any contents, or by whole lines, one write per line, so that
//! lines of several writers never mix and a reader sees a line or nothing.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::{Error, fs_calls, sync_parent};

/// A file that was opened for appending.
#[derive(Debug)]
pub struct AppendFile {
    file: File,
    path: PathBuf,
}

impl AppendFile {
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

/// An append-only text file.
#[derive(Debug)]
pub struct LineFile {
    appended: AppendFile,
    /// The last write broke off, so that the next line must begin with a line end.
    is_torn: bool,
}

impl LineFile {
    /// Opens `path` for appending and makes it if needed, mode 0644 less the umask. A last line
    /// without an end, as a killed process leaves it, is ended by the next one.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut appended = AppendFile::open(path)?;
        let is_torn = ends_inside_a_line(&mut appended.file).map_err(Error::io("read", path))?;
        Ok(Self { appended, is_torn })
    }

    /// Appends `line` and a line end in one write.
    ///
    /// # Errors
    ///
    /// The write fails, possibly after part of the line was written; the next one starts on a
    /// new line.
    pub fn push(&mut self, line: &str) -> Result<(), Error> {
        let start = if self.is_torn { "\n" } else { "" };
        self.is_torn = true;
        self.appended.append(format!("{start}{line}\n").as_bytes())?;
        self.is_torn = false;
        Ok(())
    }

    /// Waits until all lines are on disk.
    pub fn sync(&self) -> Result<(), Error> {
        self.appended.sync()
    }

    pub fn path(&self) -> &Path {
        self.appended.path()
    }
}

fn ends_inside_a_line(file: &mut File) -> std::io::Result<bool> {
    // A device has no length, and no end to look at.
    if file.metadata()?.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last != *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_added_to_those_of_an_earlier_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        for line in ["one", "two"] {
            LineFile::open(&path).unwrap().push(line).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_line_that_a_killed_process_left_unfinished_stays_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        super::super::write_atomic(&path, b"one\ntw").unwrap();
        let mut lines = LineFile::open(&path).unwrap();
        lines.push("three").unwrap();
        lines.push("four").unwrap();
        lines.sync().unwrap();
        assert_eq!(std::fs::read_to_string(lines.path()).unwrap(), "one\ntw\nthree\nfour\n");
    }
}
