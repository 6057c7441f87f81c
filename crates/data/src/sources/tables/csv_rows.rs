//! Tables in CSV, row by row: their header, the line of each row, and errors of the text.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::path::Path;

use csv::{ErrorKind, Position, Reader, ReaderBuilder, StringRecord, Trim};

use crate::error::{Error, is_number};
use crate::file_names::unpacked;
use crate::sources::tables::column::BadCell;
use crate::sources::tables::table::{at, cell};

/// Expected layout of a table, for messages.
pub(crate) const EXPECTED: &str =
    "a table with one header line, separated by commas, or by tabs in a `.tsv`";

/// Separator of the cells of the table at `path`.
pub fn delimiter(path: &Path) -> u8 {
    let ending = unpacked(path).extension();
    if ending.is_some_and(|ending| ending.eq_ignore_ascii_case("tsv")) { b'\t' } else { b',' }
}

/// The rows of a table below its header.
pub(crate) struct CsvRows<'a> {
    path: &'a Path,
    reader: Reader<&'a [u8]>,
    lines: Lines<'a>,
}

impl<'a> CsvRows<'a> {
    /// The rows of the table whose bytes were read from `path`, and the names of its columns.
    pub(crate) fn open(path: &'a Path, bytes: &'a [u8]) -> Result<(Self, Vec<String>), Error> {
        if bytes.trim_ascii().is_empty() {
            return Err(Error::Empty { path: path.to_owned(), expected: EXPECTED });
        }
        let reader = ReaderBuilder::new()
            .delimiter(delimiter(path))
            .flexible(true)
            .trim(Trim::All)
            .from_reader(bytes);
        let mut rows = Self { path, reader, lines: Lines::of(bytes) };
        let header = rows.reader.headers().cloned().map_err(|error| rows.malformed(&error))?;
        Ok((rows, header.iter().map(str::to_owned).collect()))
    }

    /// Reads the next row into `record`; its line, or `None` behind the last row.
    pub(crate) fn read(&mut self, record: &mut StringRecord) -> Result<Option<u64>, Error> {
        self.try_read(record)?.transpose()
    }

    /// Reads the next row as [`CsvRows::read`]; a row that is not text has an error of its own, and
    /// the next one can be read.
    pub(crate) fn try_read(
        &mut self,
        record: &mut StringRecord,
    ) -> Result<Option<Result<u64, Error>>, Error> {
        match self.reader.read_record(record) {
            Ok(true) => Ok(Some(Ok(self.lines.line(record.position())))),
            Ok(false) => Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::Utf8 { .. }) => {
                Ok(Some(Err(self.malformed(&error))))
            }
            Err(error) => Err(self.malformed(&error)),
        }
    }

    fn malformed(&mut self, error: &csv::Error) -> Error {
        let line = self.lines.line(error.position());
        let ErrorKind::Utf8 { err, .. } = error.kind() else {
            return at(self.path, line, error.to_string());
        };
        let what = format!("cell {} is not UTF-8 text", err.field() + 1);
        let help = format!(
            "save it as UTF-8; in Python, `pandas.read_csv(\"{0}\", encoding=\"latin-1\")\
             .to_csv(\"{0}\", index=False)`, or with the encoding that it has",
            self.path.display()
        );
        cell(self.path, line, BadCell { what, help: Some(help) })
    }
}

/// Counts the lines of a table as an editor does. The library's own numbers are one behind where
/// lines end in CRLF, and leave out empty lines before a row.
struct Lines<'a> {
    bytes: &'a [u8],
    /// Offset of the newest row, and its line.
    at: usize,
    line: u64,
}

impl<'a> Lines<'a> {
    /// Reads the rows of a whole table.
    fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, line: 1 }
    }

    /// The line, from 1, on which the row begins that was read from `position` on. Positions
    /// ascend.
    fn line(&mut self, position: Option<&Position>) -> u64 {
        let from = position.map_or(self.at, |position| position.byte() as usize);
        let from = from.clamp(self.at, self.bytes.len());
        let is_end = |byte: &&u8| matches!(byte, b'\r' | b'\n');
        let begin = from + self.bytes[from..].iter().take_while(is_end).count();
        let passed = &self.bytes[self.at..begin];
        let ends_line = |&(at, &byte): &(usize, &u8)| {
            byte == b'\n' || (byte == b'\r' && passed.get(at + 1) != Some(&b'\n'))
        };
        self.line += passed.iter().enumerate().filter(ends_line).count() as u64;
        self.at = begin;
        self.line
    }
}

/// Refuses two columns of one name.
pub(crate) fn check_unique(header: &[String]) -> Result<(), BadCell> {
    let mut seen = BTreeMap::new();
    let twice =
        header.iter().enumerate().find_map(|(at, name)| Some((seen.insert(name, at)?, at, name)));
    let Some((first, second, name)) = twice else { return Ok(()) };
    let help = if is_number(name) {
        "write the column names into the first line, if the header line is missing"
    } else {
        "give each column a name of its own"
    };
    let what = format!("columns {} and {} are both called `{name}`", first + 1, second + 1);
    Err(BadCell { what, help: Some(help.to_owned()) })
}

/// Refuses a row that has not as many cells as the header, with what to do if it has more, and if
/// it has fewer.
pub(crate) fn check_width(
    cells: usize,
    header: &[String],
    [more, fewer]: [&str; 2],
) -> Result<(), BadCell> {
    let help = match cells.cmp(&header.len()) {
        Ordering::Equal => return Ok(()),
        Ordering::Greater => more,
        Ordering::Less => fewer,
    };
    Err(BadCell { what: ragged(cells, header), help: Some(help.to_owned()) })
}

/// Error for a row that has not as many cells as the header.
pub(crate) fn ragged(cells: usize, header: &[String]) -> String {
    format!("{cells} cells, but the header has {}", header.len())
}

/// Remedy for the table at `path` whose header is one cell in which another sign separates the
/// names.
pub fn other_separator(path: &Path, header: &[String]) -> Option<String> {
    let [only] = header else { return None };
    let others = [(b'\t', "tabs"), (b';', "`;`"), (b'|', "`|`"), (b',', "commas")];
    let is_there = |byte: u8| byte != delimiter(path) && only.as_bytes().contains(&byte);
    let (byte, by) = others.into_iter().find(|(byte, _)| is_there(*byte))?;
    Some(match byte {
        b'\t' => "separated by tabs? Call the file `.tsv`".to_owned(),
        b',' => "separated by commas? Call the file `.csv`".to_owned(),
        byte => format!(
            "separated by {by}? Save it with commas between the cells and points in the numbers; in \
             Python, `pandas.read_csv(\"{0}\", sep=\"{1}\"{2}).to_csv(\"{0}\", index=False)`",
            path.display(),
            char::from(byte),
            if byte == b';' { ", decimal=\",\"" } else { "" },
        ),
    })
}
