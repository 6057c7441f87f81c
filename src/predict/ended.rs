//! What came of a job, in numbers and words.

use crate::predict::row::{Column, Rows, Value};

/// What came of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended {
    pub(crate) rows: usize,
    /// Of these, rows that have an error, and the first of them: path, row and error.
    pub(crate) failed: usize,
    pub(crate) first: Vec<String>,
}

/// Rows with an error that are named.
const MAX_NAMED: usize = 10;

impl Ended {
    /// Counts more rows.
    pub(super) fn count(&mut self, rows: &Rows, columns: &[Column]) {
        let has_failed = |row: &&Vec<Value>| row.last() != Some(&Value::Nothing);
        let left = MAX_NAMED - self.first.len();
        self.rows += rows.len();
        self.failed += rows.iter().filter(has_failed).count();
        let named = rows.iter().filter(has_failed).take(left).map(|row| named(row, columns));
        self.first.extend(named);
    }
}

/// A row with an error, in words.
fn named(row: &[Value], columns: &[Column]) -> String {
    let known = columns.iter().zip(row).filter(|(column, value)| {
        ["path", "row"].contains(&column.name.as_str()) && **value != Value::Nothing
    });
    let word = |(column, value): (&Column, &Value)| match column.name.as_str() {
        "row" => format!("row {value}"),
        _ => value.to_string(),
    };
    let words: Vec<String> = known.map(word).collect();
    let why = row.last().map(ToString::to_string).unwrap_or_default();
    format!("{}: {why}", words.join(", "))
}
