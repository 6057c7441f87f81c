//! `data.name = "csv"`: tables of numbers with a header line; one column is the target.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Modality, Offer, Options};
use crate::data::error::{Error, shown};
use crate::data::listing::paths::both;
use crate::data::sources::source::{Asked, DataSource, Files, Reading, Survey};
use crate::data::sources::tables::table::{self, Answer, Rows, at};
use crate::data::{Splits, read};

const EXPECTED: &str = "a table of numbers, separated by commas, with one header line";

/// a table of numbers with a header line; one column is the target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Csv {
    /// table to train on, with a header line.
    #[schemars(extend("format" = "path"), example = "data/train.csv")]
    pub train_file: PathBuf,
    /// table to validate on, with the same header.
    #[schemars(extend("format" = "path"), example = "data/val.csv")]
    pub val_file: PathBuf,
    /// name of the column to predict; all others are features.
    #[schemars(example = &"price")]
    pub target: String,
}

impl Kind for Csv {
    const NAME: &'static str = "csv";
    const OFFERS: &'static [Offer] = &[Offer::Samples(Modality::Table)];
}

impl DataSource for Csv {
    fn open(&self, reading: &Reading<'_>) -> Result<Splits, Error> {
        open(&self.train_file, &self.val_file, &self.target, reading.asked.classify)
    }

    fn survey(&self, asked: &Asked<'_>) -> Result<Survey, Error> {
        let splits = open(&self.train_file, &self.val_file, &self.target, asked.classify)?;
        let files = both(&self.train_file, &self.val_file);
        let line = format!("{files}, target `{}`", self.target);
        let found = Survey { line, ..Survey::of(&splits) };
        Ok(Survey { held: found.held_whole(), ..found })
    }

    fn files(&self, _: &Options) -> Result<Vec<Files>, Error> {
        Ok(vec![Files::one("train", &self.train_file), Files::one("val", &self.val_file)])
    }
}

/// Reads both tables.
///
/// # Errors
///
/// A file is absent or has no `target`, the columns of the two differ, or a line holds something that is
/// not a finite number; names file, line, column and value.
pub(crate) fn open(
    train: &Path,
    val: &Path,
    target: &str,
    classify: bool,
) -> Result<Splits, Error> {
    let train = read(train, "the training table", target, classify)?;
    let val = read(val, "the validation table", target, classify)?;
    table::splits(train, val, classify)
}

/// A table as written.
fn read(path: &Path, what: &'static str, target: &str, classify: bool) -> Result<Rows, Error> {
    let bytes = read::lines(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => {
            Error::Missing { what, path: path.to_owned(), expected: EXPECTED }
        }
        _ => Error::Io { action: "read", path: path.to_owned(), source },
    })?;
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    let mut reader =
        ::csv::ReaderBuilder::new().flexible(true).trim(::csv::Trim::All).from_reader(bytes);
    let mut lines = Lines::of(bytes);
    let header = reader.headers().map_err(|error| malformed(path, &mut lines, &error))?;
    let header: Vec<String> = header.iter().map(str::to_owned).collect();
    let target_idx = check_header(path, &header, target)?;
    let mut rows = Rows::new(path, header);
    let mut record = ::csv::StringRecord::new();
    while reader.read_record(&mut record).map_err(|error| malformed(path, &mut lines, &error))? {
        let line = lines.line(record.position());
        push(&mut rows, &record, (target_idx, classify)).map_err(|what| at(path, line, what))?;
        rows.lines.push(line);
    }
    if rows.lines.is_empty() {
        let what = "it has a header but no rows".to_owned();
        return Err(Error::Format { path: path.to_owned(), what });
    }
    rows.columns.remove(target_idx);
    Ok(rows)
}

fn push(
    rows: &mut Rows,
    record: &::csv::StringRecord,
    (target_idx, classify): (usize, bool),
) -> Result<(), String> {
    if record.len() != rows.columns.len() {
        let (cells, columns) = (record.len(), rows.columns.len());
        return Err(format!("{cells} cells, but the header has {columns}"));
    }
    for (column_idx, cell) in record.iter().enumerate() {
        let column = &rows.columns[column_idx];
        if column_idx != target_idx {
            rows.features.push(number(column, cell)?);
        } else if classify {
            rows.answers.push(class(column, cell)?);
        } else {
            rows.answers.push(Answer::value(number(column, cell)?));
        }
    }
    Ok(())
}

/// Position of the target.
fn check_header(path: &Path, header: &[String], target: &str) -> Result<usize, Error> {
    let mut seen = BTreeSet::new();
    if let Some(twice) = header.iter().find(|name| !seen.insert(*name)) {
        return Err(at(path, 1, format!("two columns are called `{twice}`")));
    }
    if header.len() < 2 {
        return Err(at(path, 1, "the table needs the target and at least one feature".to_owned()));
    }
    let columns = || header.to_vec();
    header.iter().position(|name| name == target).ok_or_else(|| Error::NoColumn {
        path: path.to_owned(),
        column: target.to_owned(),
        columns: columns(),
    })
}

pub(crate) fn number(column: &str, cell: &str) -> Result<f64, String> {
    match cell.parse::<f64>() {
        Ok(value) if (value as f32).is_finite() => Ok(value),
        Ok(_) => Err(format!("`{column}` is `{cell}`, which is not finite in 32 bits")),
        Err(_) if cell.is_empty() => Err(format!("`{column}` is empty")),
        Err(_) => Err(format!("`{column}` is `{}`, which is not a number", shown(Path::new(cell)))),
    }
}

fn class(column: &str, cell: &str) -> Result<Answer, String> {
    match cell.parse::<f64>() {
        // f64 holds integers up to 2^53 exactly.
        Ok(value) if value.fract() == 0.0 && value.abs() < 9e15 => {
            Ok(Answer::Integer(value as i64))
        }
        Ok(_) => Err(format!(
            "`{column}` is `{cell}`, which is not a class: a class is an integer or a word"
        )),
        Err(_) if cell.is_empty() => Err(format!("`{column}` is empty")),
        Err(_) => Ok(Answer::Word(cell.to_owned())),
    }
}

pub(crate) fn malformed(path: &Path, lines: &mut Lines<'_>, error: &::csv::Error) -> Error {
    let what = match error.kind() {
        ::csv::ErrorKind::Utf8 { err, .. } => {
            format!("cell {} is not UTF-8 text", err.field() + 1)
        }
        _ => error.to_string(),
    };
    at(path, lines.line(error.position()), what)
}

/// Counts the lines of a table as an editor does. The library's own numbers are one behind where lines end in CRLF, and
/// leave out empty lines before a row.
pub(crate) struct Lines<'a> {
    bytes: &'a [u8],
    /// Where the newest row begins, and its line.
    at: usize,
    line: u64,
}

impl<'a> Lines<'a> {
    /// Those of a whole table.
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, line: 1 }
    }

    /// The line, from 1, on which the row begins that was read from `position` on. Positions ascend.
    pub(crate) fn line(&mut self, position: Option<&::csv::Position>) -> u64 {
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::data::{Dataset, Target};

    fn opened(train: &str, val: &str, classify: bool) -> Result<Splits, Error> {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::File::create(&path).unwrap().write_all(text.as_bytes()).unwrap();
            path
        };
        open(&put("train.csv", train), &put("val.csv", val), "y", classify)
    }

    fn row(dataset: &dyn Dataset, index: usize) -> (Vec<f32>, Target) {
        let mut values = Vec::new();
        let target = dataset.load(index, None, &mut values).unwrap();
        (values, target)
    }

    #[test]
    fn features_are_standardised_with_the_training_rows_and_targets_are_not() {
        let train = "\u{feff}a,y,b\r\n1,10.5,7\r\n3,-2,7\r\n";
        let splits = opened(train, "a,y,b\n5,1,8\n", false).unwrap();
        assert!(splits.classes.is_empty());
        // Column a: mean 2, population deviation 1. Column b is constant.
        assert_eq!(row(&*splits.train, 0), (vec![-1.0, 0.0], Target::Value(10.5)));
        assert_eq!(row(&*splits.train, 1), (vec![1.0, 0.0], Target::Value(-2.0)));
        assert_eq!(row(&*splits.val, 0), (vec![3.0, 1.0], Target::Value(1.0)));
    }

    #[test]
    fn classes_are_the_sorted_distinct_labels() {
        let splits = opened("a,y\n0,10\n1,2\n2,10.0\n", "a,y\n3,2\n", true).unwrap();
        assert_eq!(splits.classes, ["2", "10"]);
        assert_eq!(row(&*splits.train, 2).1, Target::Class(1));
        assert_eq!(row(&*splits.val, 0).1, Target::Class(0));
        let words = opened("a,y\n0,setosa\n1,iris\n2,3\n", "a,y\n0,3\n", true).unwrap().classes;
        assert_eq!(words, ["3", "iris", "setosa"]);
    }

    #[test]
    fn lines_are_counted_as_an_editor_counts_them() {
        // Rows in lines 2, 3 and 4, of which one at a time is wrong.
        for end in ["\n", "\r\n", "\r"] {
            for mark in ["", "\u{feff}"] {
                for wrong in 0..3 {
                    let row = |row| if row == wrong { "x,1" } else { "1,1" };
                    let rows = [0, 1, 2].map(row).join(end);
                    let table = format!("{mark}a,y{end}{rows}{end}");
                    let error = opened(&table, "a,y\n1,1\n", false).err().unwrap().to_string();
                    let line = format!("line {}: `a` is `x`", wrong + 2);
                    assert!(error.contains(&line), "{table:?}: {error}");
                }
            }
        }
        let check = |table: &str, expected: &str| {
            let error = opened(table, "a,y\n1,1\n", true).err().unwrap().to_string();
            assert!(error.contains(expected), "{table:?}: {error}");
        };
        // Empty lines, and line ends inside of quotes.
        check("\n\na,y\n\n1,1\n\r\n\nx,1\n", "line 8: `a` is `x`");
        check("a,y\r\n1,\"one\r\ntwo\"\r\nx,1\r\n", "line 4: `a` is `x`");
        check("\"a\",\"y\ny\"\n1,1\n", "has no column `y`");
        check("a,y\n1,1\nx,1", "line 3: `a` is `x`");
        check("a,y\r\n1,1\r\n1,1\r\n1\r\n", "line 4: 1 cells, but the header has 2");
    }

    #[test]
    fn bytes_that_are_no_text_are_named_with_their_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.csv");
        let bytes = b"a,y\r\n1,1\r\n1,\xff\r\n";
        std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        let error = open(&path, &path, "y", false).err().unwrap().to_string();
        assert!(error.ends_with("train.csv`, line 3: cell 2 is not UTF-8 text"), "{error}");
    }

    #[test]
    fn what_is_not_a_number_is_named_with_line_and_column() {
        let check = |train: &str, classify: bool, expected: &str| {
            let Err(error) = opened(train, "a,y\n1,1\n", classify) else { panic!("{train}") };
            assert!(error.to_string().contains(expected), "{error}");
        };
        check("a,y\n1,1\n,2\n", false, "line 3: `a` is empty");
        check("a,y\n1,1\nNaN,2\n", false, "line 3: `a` is `NaN`");
        check("a,y\n1,1\n2,inf\n", false, "line 3: `y` is `inf`");
        check("a,y\n1,nan\n2,1\n", true, "line 2: `y` is `nan`, which is not a class");
        check("a,y\n1,1e39\n", false, "line 2: `y` is `1e39`");
        check("a,y\n\"1,5\",1\n", false, "`a` is `1,5`, which is not a number");
        check("a,y\n1,1\n1,2,3\n", false, "line 3: 3 cells, but the header has 2");
        check("a,y\n1,0.5\n", true, "not a class");
        check("a,b\n1,1\n", false, "has no column `y`; its columns are `a`, `b`");
        check("y,y\n1,1\n", false, "two columns are called `y`");
        check("b,y\n1,1\n", false, "different columns");
        check("a,y\n", false, "no rows");
        check("", false, "at least one feature");
        check("a,y\n1,5\n", true, "line 2: class `1` is not in the training table");
    }
}
