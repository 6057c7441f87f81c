//! Files of JSON objects: one in each line, a list of them, or the rows of a parquet file.

use std::ops::Range;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::Value;

use crate::error::Error;
use crate::sources::named_files::FileNames;
use crate::sources::text::entries::{CutEntry, Entries};
use crate::{parquet, read};

/// How such files are called.
pub(super) const ENTRY_FILES: FileNames = FileNames {
    endings: &[".parquet", ".jsonl", ".json"],
    packed: &[".gz", ".zst"],
    example: "data/*.jsonl",
};

/// The objects of a file, in its order.
enum EntryFile {
    /// The text, and where the lines are that are not blank, with their numbers.
    Lines(Vec<u8>, Vec<(u64, Range<usize>)>),
    /// A list.
    List(Vec<Value>),
}

impl EntryFile {
    /// Reads the file at `path`, which messages call `what` and which should hold `expected`.
    fn read(path: &Path, what: &'static str, expected: &'static str) -> Result<Self, Error> {
        let bytes = match parquet::json_lines(path, what, expected)? {
            Some(lines) => lines,
            None => read::text(what, path, expected)?,
        };
        if bytes.trim_ascii_start().starts_with(b"[") {
            return serde_json::from_slice(&bytes).map(Self::List).map_err(|error| {
                let what = format!("it is not a JSON list: {error}");
                Error::Format { path: path.to_owned(), what }
            });
        }
        let mut lines = Vec::new();
        let mut start = 0;
        for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
            if !line.trim_ascii().is_empty() {
                lines.push((number, start..start + line.len()));
            }
            start += line.len() + 1;
        }
        Ok(Self::Lines(bytes, lines))
    }

    /// Cuts every object by `cut`, by all threads: its line or position, and its tokens or what is
    /// wrong with it.
    fn cut(
        &self,
        cut: impl Fn(&Value) -> Result<CutEntry, String> + Sync,
    ) -> Vec<(u64, Result<CutEntry, String>)> {
        let of_line = |(number, range): &(u64, Range<usize>), bytes: &[u8]| {
            let value = serde_json::from_slice(&bytes[range.clone()]).map_err(|error| {
                // The parser counts lines of this line alone.
                let why = error.to_string();
                let why = why.split(" at line ").next().unwrap_or_default().to_owned();
                format!("it is not JSON: {why}, in column {}", error.column())
            });
            (*number, value.and_then(|value| cut(&value)))
        };
        match self {
            Self::Lines(bytes, lines) => {
                lines.par_iter().map(|line| of_line(line, bytes)).collect()
            }
            Self::List(list) => (1..).zip(list.par_iter().map(&cut).collect::<Vec<_>>()).collect(),
        }
    }

    /// Name of a place in it.
    fn unit(&self) -> &'static str {
        match self {
            Self::Lines(..) => "line",
            Self::List(_) => "entry",
        }
    }
}

/// Cuts every object of `files` by `cut`, one file after the other. Messages call the files `what`,
/// and they should hold `expected`.
pub(super) fn cut_files(
    files: &[PathBuf],
    what: &'static str,
    expected: &'static str,
    cut: impl Fn(&Value) -> Result<CutEntry, String> + Sync,
) -> Result<Entries, Error> {
    let mut all = Vec::new();
    let mut unit = "line";
    for (number, path) in (0..).zip(files) {
        let file = EntryFile::read(path, what, expected)?;
        unit = file.unit();
        let placed = |(line, found)| (Entries::place(number, line), found);
        all.extend(file.cut(&cut).into_iter().map(placed));
    }
    Ok(Entries::new(all, unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each entry's place, and its number `n` or what is wrong.
    fn read(name: &str, bytes: &[u8]) -> Vec<(u64, Result<i64, String>)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        crate::files::write_atomic(&path, bytes).unwrap();
        let seen = std::sync::Mutex::new(Vec::new());
        let entries = cut_files(&[path], "the objects", "objects", |value| {
            let n = value["n"].as_i64().ok_or("no n")?;
            seen.lock().unwrap().push(n);
            Ok(CutEntry { tokens: vec![(n as u32, true)], ..CutEntry::default() })
        })
        .unwrap();
        let of = |index| {
            let tokens = entries.read(index, 1).unwrap();
            let n = tokens.first().map(|(token, _)| i64::from(*token));
            (entries.line(index), n.ok_or_else(|| entries.wrong(index).unwrap().to_owned()))
        };
        (0..entries.len()).map(of).collect()
    }

    #[test]
    fn lines_a_list_and_packed_lines_are_the_same_entries() {
        let lines = b"{\"n\": 3}\r\n\n  {\"n\": 4}\n";
        assert_eq!(read("a.jsonl", lines), [(1, Ok(3)), (3, Ok(4))]);
        let marked = [b"\xEF\xBB\xBF", &lines[..]].concat();
        assert_eq!(read("a.jsonl", &marked), [(1, Ok(3)), (3, Ok(4))]);
        assert_eq!(read("a.json", b"\xEF\xBB\xBF [{\"n\": 3},\n{}]").len(), 2);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, lines).unwrap();
        assert_eq!(read("a.jsonl.gz", &packed.finish().unwrap()), [(1, Ok(3)), (3, Ok(4))]);
    }

    #[test]
    fn a_line_of_any_length_is_read_and_a_wrong_one_is_an_entry_of_its_own() {
        let long = format!("{{\"n\": 1, \"text\": \"{}\"}}", "a".repeat(3 << 20));
        let text = format!("{long}\n{{\"n\": 2\nhello\n[]\n{{\"n\": 5}}");
        let found = read("a.jsonl", text.as_bytes());
        assert_eq!([&found[0], &found[4]], [&(1, Ok(1)), &(5, Ok(5))]);
        let wrong = |at: usize| found[at].1.clone().unwrap_err();
        assert_eq!(wrong(1), "it is not JSON: EOF while parsing an object, in column 7");
        assert_eq!(wrong(2), "it is not JSON: expected value, in column 1");
        assert_eq!(wrong(3), "no n");
    }
}
