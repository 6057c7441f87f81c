//! Rows of predictions, and their number.

use std::fmt;
use std::ops::Index;

use serde::{Deserialize, Serialize};

/// Rows with an error that are named.
const MAX_NAMED: usize = 10;

/// A value of a row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// Nothing: a row that cannot be predicted, or no error.
    Nothing,
    /// A whole number.
    Integer(i64),
    /// A number: the shortest decimal with the same 32 bits as the output of the model.
    Number(f64),
    Text(String),
}

/// Type of the values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ColumnType {
    Text,
    /// Whole numbers.
    Integer,
    Number,
}

/// A column of predictions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    pub name: String,
    pub kind: ColumnType,
}

/// Rows, each with a value for each column.
pub(crate) type Rows = Vec<Vec<Value>>;

/// A row, by the names of its columns.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    pub(crate) columns: &'a [Column],
    pub(crate) values: &'a [Value],
}

impl Value {
    /// A number of 32 bits.
    pub(crate) fn of(value: f32) -> Self {
        if !value.is_finite() {
            return Self::Nothing;
        }
        // The same digits, so that a file says 0.1 and not 0.10000000149011612.
        value.to_string().parse().map_or(Self::Nothing, Self::Number)
    }

    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Integer(value) => Some(*value as f64),
            Self::Number(value) => Some(*value),
            Self::Nothing | Self::Text(_) => None,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => Ok(()),
            Self::Integer(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl Column {
    pub(crate) fn new(name: impl Into<String>, kind: ColumnType) -> Self {
        Self { name: name.into(), kind }
    }
}

impl Row<'_> {
    /// The value of the column `name`, if there is one.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let at = self.columns.iter().position(|column| column.name == name)?;
        self.values.get(at)
    }

    /// The row as a JSON object, in the order of its columns.
    pub(crate) fn to_json(self) -> serde_json::Map<String, serde_json::Value> {
        let pairs = self.columns.iter().zip(self.values);
        pairs.map(|(column, value)| (column.name.clone(), serde_json::json!(value))).collect()
    }
}

impl Index<&str> for Row<'_> {
    type Output = Value;

    /// The value of the column `name`; nothing if there is no such column.
    fn index(&self, name: &str) -> &Value {
        self.get(name).unwrap_or(&Value::Nothing)
    }
}

/// Result of a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobSummary {
    pub(crate) rows: usize,
    /// Rows that have an error.
    pub(crate) failed: usize,
    /// The first of them: path, row and error.
    pub(crate) first: Vec<String>,
}

impl JobSummary {
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
