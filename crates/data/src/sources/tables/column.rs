//! A column of a table as it is read, cell by cell.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::shown;
use crate::json::NOT_FINITE;
use crate::sources::dates::{Date, DateForm, WrongDate, could_be_dates};
use crate::sources::tables::features::{CellRules, ColumnKind, MissingValues};

/// A feature of all rows.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) cells: Cells,
}

/// The cells of a column, in the order of the rows.
#[derive(Clone, Debug)]
pub(crate) enum Cells {
    /// NaN where a cell is empty.
    Numbers(Vec<f64>),
    /// "" where it is.
    Words(Words),
    /// Dates of one format; `None` for empty cells.
    Dates(DateForm, Vec<Option<Date>>),
}

/// Words, each of which is kept once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    numbers: BTreeMap<String, u32>,
    /// Distinct words, in the order of their first rows.
    distinct: Vec<String>,
    /// The number of each row's word.
    rows: Vec<u32>,
}

/// Error of a cell, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BadCell {
    pub(crate) what: String,
    pub(crate) help: Option<String>,
}

impl From<String> for BadCell {
    fn from(what: String) -> Self {
        Self { what, help: None }
    }
}

impl Column {
    /// A column without cells; dates are read in the format `form`.
    pub(crate) fn new(name: &str, kind: ColumnKind, form: Option<&DateForm>) -> Self {
        let cells = match kind {
            ColumnKind::Number => Cells::Numbers(Vec::new()),
            ColumnKind::Category => Cells::Words(Words::default()),
            ColumnKind::Date => Cells::Dates(form.cloned().unwrap_or_default(), Vec::new()),
        };
        Self { name: name.to_owned(), cells }
    }

    /// The cells of some rows.
    pub(crate) fn rows(&self, rows: &[usize]) -> Self {
        let cells = match &self.cells {
            Cells::Numbers(all) => Cells::Numbers(rows.iter().map(|&row| all[row]).collect()),
            Cells::Dates(form, all) => {
                Cells::Dates(form.clone(), rows.iter().map(|&row| all[row]).collect())
            }
            Cells::Words(all) => {
                let mut some = Words::default();
                for &row in rows {
                    some.push(all.word(row));
                }
                Cells::Words(some)
            }
        };
        Self { name: self.name.clone(), cells }
    }

    /// Appends the cells of `other`, a column of the same kind.
    pub(crate) fn extend(&mut self, other: &Self) {
        match (&mut self.cells, &other.cells) {
            (Cells::Numbers(all), Cells::Numbers(more)) => all.extend(more),
            (Cells::Dates(_, all), Cells::Dates(_, more)) => all.extend(more),
            (Cells::Words(all), Cells::Words(more)) => {
                (0..more.rows.len()).for_each(|row| all.push(more.word(row)));
            }
            _ => {}
        }
    }

    /// Number of empty cells in some rows.
    pub(crate) fn empty_in(&self, rows: Range<usize>) -> usize {
        match &self.cells {
            Cells::Numbers(all) => all[rows].iter().filter(|number| number.is_nan()).count(),
            Cells::Words(all) => rows.filter(|row| all.word(*row).is_empty()).count(),
            Cells::Dates(_, all) => all[rows].iter().filter(|date| date.is_none()).count(),
        }
    }

    /// Appends a cell as it is written.
    pub(crate) fn push(&mut self, cell: &str, rules: CellRules<'_>) -> Result<(), BadCell> {
        let name = &self.name;
        let is_empty = rules.missing.holds(cell);
        let features = rules.features;
        match &mut self.cells {
            Cells::Words(words) => words.push(if is_empty { "" } else { cell }),
            Cells::Numbers(numbers) if is_empty && features.missing.is_some() => {
                numbers.push(f64::NAN);
            }
            Cells::Numbers(numbers) => numbers.push(number(name, cell).map_err(|what| {
                let help = Some(remedy(name, cell, is_empty));
                BadCell { what, help }
            })?),
            Cells::Dates(_, all) if is_empty && features.missing.is_some() => all.push(None),
            Cells::Dates(..) if is_empty => {
                let what = empty(name, cell);
                return Err(BadCell { what, help: Some(remedy(name, cell, true)) });
            }
            Cells::Dates(form, all) => {
                let (date, _) = form.read(cell, 0).map_err(|wrong| wrong_date(name, wrong))?;
                all.push(Some(date));
            }
        }
        Ok(())
    }

    /// Appends a value of JSON at `key`, or of the list there; what is not there is null.
    pub(crate) fn push_json(
        &mut self,
        key: &str,
        value: &Value,
        rules: CellRules<'_>,
    ) -> Result<(), BadCell> {
        let name = self.name.clone();
        self.push_value(value, rules).map_err(|BadCell { what, help }| {
            let of_keys = |help: String| {
                let columns = format!("[\"{name}\"]");
                help.replace(&ignored(&name), INPUTS).replace(&columns, &format!("[\"{key}\"]"))
            };
            BadCell { what, help: help.map(of_keys) }
        })
    }

    fn push_value(&mut self, value: &Value, rules: CellRules<'_>) -> Result<(), BadCell> {
        let name = &self.name;
        if is_missing(value, rules.missing) {
            return self.push("", rules);
        }
        match (&mut self.cells, value) {
            (Cells::Numbers(numbers), value) => {
                let help = || matches!(value, Value::String(_)).then(|| remedy(name, "", false));
                let number = json_number(name, value);
                numbers.push(number.map_err(|what| BadCell { what, help: help() })?);
                Ok(())
            }
            (_, Value::String(word)) => self.push(word.trim(), rules),
            (Cells::Words(_), Value::Number(number)) => {
                let whole = number.as_f64().and_then(whole).map(|whole| whole.to_string());
                self.push(&whole.unwrap_or(number.to_string()), rules)
            }
            (Cells::Words(_), Value::Bool(value)) => self.push(&value.to_string(), rules),
            (Cells::Words(_), value) => Err(format!("`{name}` is {value}, which is no category"))?,
            (Cells::Dates(..), value) => Err(format!("`{name}` is {value}, which is no date"))?,
        }
    }
}

impl Cells {
    /// True if there is a cell for each class, and a class for each cell; `labels` has the class of
    /// each row.
    pub(crate) fn names_each_of(&self, labels: &[u32]) -> bool {
        match self {
            Self::Numbers(numbers) => is_one_to_one(numbers.iter().map(|n| n.to_bits()), labels),
            Self::Words(words) => is_one_to_one(words.rows.iter().map(|&n| n.into()), labels),
            Self::Dates(..) => false,
        }
    }
}

fn is_one_to_one(cells: impl Iterator<Item = u64>, labels: &[u32]) -> bool {
    let mut label_of = BTreeMap::new();
    let mut cell_of = BTreeMap::new();
    let mut pairs = cells.zip(labels);
    pairs.all(|(cell, &label)| {
        *label_of.entry(cell).or_insert(label) == label
            && *cell_of.entry(label).or_insert(cell) == cell
    }) && cell_of.len() > 1
}

impl Words {
    fn push(&mut self, word: &str) {
        let next = self.distinct.len() as u32;
        let number = self.numbers.get(word).copied().unwrap_or_else(|| {
            self.numbers.insert(word.to_owned(), next);
            self.distinct.push(word.to_owned());
            next
        });
        self.rows.push(number);
    }

    /// The word of a row.
    pub(crate) fn word(&self, row: usize) -> &str {
        &self.distinct[self.rows[row] as usize]
    }

    /// The number of each row's word.
    pub(crate) fn numbers(&self) -> &[u32] {
        &self.rows
    }

    /// Distinct words, by their numbers.
    pub(crate) fn distinct(&self) -> &[String] {
        &self.distinct
    }
}

/// Remedy that leaves out a key of JSON.
const INPUTS: &str = "leave it out of `data.inputs`";

/// Remedy that leaves out a column.
fn ignored(name: &str) -> String {
    format!("leave the column out with `data.ignore = [\"{name}\"]`")
}

/// Remedy in the experiment for a cell that is no number.
fn remedy(name: &str, cell: &str, is_empty: bool) -> String {
    let ignore = ignored(name);
    if is_empty {
        return format!("fill empty cells with `data.features.missing = \"mean\"`, or {ignore}");
    }
    if cell.parse::<f64>().is_ok() {
        return format!("correct or remove such rows, or {ignore}");
    }
    if let Some(point) = with_point(cell) {
        return format!("{}, or {ignore}", decimals(&point));
    }
    if could_be_dates([cell], false) {
        return format!("set `data.features.dates = [\"{name}\"]`, or {ignore}");
    }
    format!(
        "correct it, or list it in `data.missing_values`; if the column holds words, set \
         `data.features.categorical = [\"{name}\"]`, or {ignore}"
    )
}

/// A cell of the column `name` that is no date.
pub(crate) fn wrong_date(name: &str, WrongDate { cell, what, help, .. }: WrongDate) -> BadCell {
    let what = format!("`{name}` is `{}`, which {what}", shown(Path::new(&cell)));
    BadCell { what, help: Some(help) }
}

/// Error for an empty cell.
pub(crate) fn empty(column: &str, cell: &str) -> String {
    match cell {
        "" => format!("`{column}` is empty"),
        cell => format!("`{column}` is `{cell}`, which counts as empty"),
    }
}

/// A number whose decimals follow a comma, with a point instead: `1.5` of `1,5`.
pub(crate) fn with_point(cell: &str) -> Option<String> {
    let point = cell.replacen(',', ".", 1);
    (point != cell && point.parse::<f64>().is_ok()).then_some(point)
}

/// Remedy for decimals that follow a comma.
pub(crate) fn decimals(point: &str) -> String {
    format!("write decimals with a point: `{point}`")
}

/// The number in a cell; 1 or 0 of a truth value.
pub(crate) fn number(column: &str, cell: &str) -> Result<f64, String> {
    match cell.parse::<f64>().map_err(|_| truth(cell)) {
        Ok(value) if (value as f32).is_finite() => Ok(value),
        Ok(_) => Err(format!("`{column}` is `{cell}`, which is not finite in 32 bits")),
        Err(Some(is_true)) => Ok(f64::from(u8::from(is_true))),
        Err(None) if cell.is_empty() => Err(empty(column, cell)),
        Err(None) => {
            Err(format!("`{column}` is `{}`, which is not a number", shown(Path::new(cell))))
        }
    }
}

/// Truth values, as pandas reads them.
const TRUTH_VALUES: [(&str, bool); 6] = [
    ("true", true),
    ("True", true),
    ("TRUE", true),
    ("false", false),
    ("False", false),
    ("FALSE", false),
];

/// The number that each of them becomes, for another program.
pub(crate) fn truth_values() -> Value {
    TRUTH_VALUES
        .iter()
        .map(|(word, is_true)| ((*word).to_owned(), u8::from(*is_true).into()))
        .collect::<Map<String, Value>>()
        .into()
}

/// The truth value in a cell.
pub(crate) fn truth(cell: &str) -> Option<bool> {
    TRUTH_VALUES.iter().find(|(word, _)| *word == cell).map(|(_, is_true)| *is_true)
}

/// A whole number, as far as 64 bits hold them exactly.
pub(crate) fn whole(value: f64) -> Option<i64> {
    (value.fract() == 0.0 && value.abs() < 9e15).then_some(value as i64)
}

/// True if a value of JSON counts as an empty cell.
pub(crate) fn is_missing(value: &Value, missing: &MissingValues) -> bool {
    match value {
        Value::Null => true,
        Value::String(word) => missing.holds(word.trim()),
        Value::Number(number) => missing.holds(&number.to_string()),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
    }
}

/// The number that a value of JSON is; 1 or 0 of a truth value.
pub(crate) fn json_number(key: &str, value: &Value) -> Result<f64, String> {
    if let Some(word) = value.as_str().filter(|word| NOT_FINITE.contains(word)) {
        return Err(format!("`{key}` is {word}, which is not finite in 32 bits"));
    }
    let number = value.as_f64().or(value.as_bool().map(|is_true| f64::from(u8::from(is_true))));
    let number = number.ok_or_else(|| format!("`{key}` is {value}, which is not a number"))?;
    if (number as f32).is_finite() {
        return Ok(number);
    }
    Err(format!("`{key}` is {value}, which is not finite in 32 bits"))
}
