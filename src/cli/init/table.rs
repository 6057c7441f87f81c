//! Tables: which column is the target, and whether it is a class.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

use crate::cli::Refusal;
use crate::cli::init::columns::Columns;
use crate::cli::init::image_table::{Table, listed};
use crate::cli::init::numbered;
use crate::cli::init::recognised::{Recognised, Task, VAL_FRACTION, path, unusable};
use crate::data;

/// Names that a target usually has.
const TARGETS: [&str; 9] =
    ["target", "label", "class", "y", "outcome", "price", "quality", "species", "output"];
/// Most different whole numbers that are taken for classes.
const MAX_CLASSES: usize = 20;
/// Rows of each class from which on numbers are taken for classes.
const ROWS_OF_A_CLASS: usize = 5;

/// A csv file of series in time: one whose first column is called `date`, or whose columns have
/// numbers for names.
pub(super) fn series(file: &Path) -> Result<Option<Recognised>, Refusal> {
    let text = text(file)?;
    let delimiter = char::from(data::delimiter(file));
    let header = text.lines().next().unwrap_or_default();
    let first = header.split(delimiter).next().unwrap_or_default();
    let first = first.trim_start_matches('\u{feff}').trim().trim_matches('"');
    let is_numbered = || {
        let (names, rows) = cells(file, &text);
        numbered::are_names(&names, &rows) && !numbered::count_up(&names)
    };
    // Other tables are read once only.
    let may_be = first.parse::<u64>().is_ok();
    let is_series = first.eq_ignore_ascii_case("date") || (may_be && is_numbered());
    if !is_series {
        return Ok(None);
    }
    let rows = text.lines().skip(1).filter(|line| !line.trim().is_empty()).count();
    // Both windows fit into each part of the rows, the smallest of which is a tenth.
    let pred_len = (rows / 40).clamp(1, 96);
    let seq_len = (rows / 10).clamp(2, 336);
    let options =
        [("file", path(file)), ("seq_len", seq_len.into()), ("pred_len", pred_len.into())];
    Ok(Some(Recognised::new("csv_forecast", &options, Task::Series { rows })))
}

/// A csv file to train on and one to validate on, for which rows are held back if there is none.
pub(super) fn csv(train: &Path, val: Option<&Path>) -> Result<Recognised, Refusal> {
    let (names, rows) = cells(train, &text(train)?);
    let are_numbers = !names.is_empty() && names.iter().all(|name| name.parse::<f64>().is_ok());
    let is_data = are_numbers && !numbered::are_names(&names, &rows);
    let Some((index, why)) = target(&names, &rows).filter(|_| !is_data) else {
        let help = "name the columns in a first line; numbers count as names only if they \
                    cannot be values";
        return Err(unusable(train, "has no header line", help));
    };
    let cell = |row: &csv::StringRecord| row.get(index).unwrap_or_default().to_owned();
    let cells: Vec<String> = rows.iter().map(cell).collect();
    let parts = [("train_file", path(train)), validation(val)];
    if let Some(images) = listed(train, &Table { names: &names, rows: &rows }, &parts)? {
        return Ok(images);
    }
    let mut options = parts.to_vec();
    options.push(("target", names[index].clone().into()));
    options.extend(Columns::of(&names, &rows, index).options());
    let (classify, words) = are_classes(&cells);
    if !classify {
        options.push(("standardize_target", true.into()));
    }
    Ok(Recognised::new("csv", &options, Task::Table { classify, why: format!("{why}; {words}") }))
}

/// The first line of a table, and the rows below it.
fn cells(file: &Path, text: &str) -> (Vec<String>, Vec<csv::StringRecord>) {
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(data::delimiter(file))
        .flexible(true)
        .trim(csv::Trim::All)
        .from_reader(text.trim_start_matches('\u{feff}').as_bytes());
    let first = reader.headers().cloned().unwrap_or_default();
    (first.iter().map(str::to_owned).collect(), reader.records().flatten().collect())
}

/// The same of JSON lines.
pub(super) fn jsonl(train: &Path, val: Option<&Path>) -> Result<Recognised, Refusal> {
    let text = text(train)?;
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let rows: Vec<Map<String, Value>> =
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
    let names: Vec<String> = rows.first().into_iter().flat_map(Map::keys).cloned().collect();
    let cells_of =
        |row: &Map<String, Value>| names.iter().map(|name| word(row.get(name))).collect();
    let records: Vec<csv::StringRecord> = rows.iter().map(cells_of).collect();
    let Some((index, why)) = target(&names, &records) else {
        return Err(unusable(train, "holds no JSON object", "write one object in each line"));
    };
    let target = &names[index];
    let columns = Columns::of(&names, &records, index);
    let is_usable = |name: &String| rows.iter().filter_map(|row| row.get(name)).all(is_input);
    let is_input = |name: &&String| *name != target && !columns.ignores(name) && is_usable(name);
    let inputs: Vec<&String> = names.iter().filter(is_input).collect();
    if inputs.is_empty() {
        let what = format!("has nothing beside `{target}` to predict it from");
        return Err(unusable(train, &what, "add keys with numbers, words or arrays of numbers"));
    }
    let cells: Vec<String> =
        records.iter().filter_map(|row| row.get(index).map(str::to_owned)).collect();
    let mut options = vec![
        ("train_file", path(train)),
        validation(val),
        ("inputs", inputs.into_iter().cloned().collect()),
        ("target", target.clone().into()),
    ];
    options.extend(columns.options().into_iter().filter(|(key, _)| *key == "features"));
    let (classify, words) = are_classes(&cells);
    if !classify {
        options.push(("standardize_target", true.into()));
    }
    Ok(Recognised::new("jsonl", &options, Task::Table { classify, why: format!("{why}; {words}") }))
}

/// The file to validate on, or rows that are held back for it.
fn validation(file: Option<&Path>) -> (&'static str, Value) {
    file.map_or(("val_fraction", VAL_FRACTION.into()), |file| ("val_file", path(file)))
}

/// A value of JSON as the cell of a table; an array stands for a number.
fn word(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(word)) => word.clone(),
        Some(Value::Array(_)) => "0".to_owned(),
        Some(value) => value.to_string(),
    }
}

/// A number, a word, an array of numbers, or nothing.
fn is_input(value: &Value) -> bool {
    match value {
        Value::Array(values) => !values.is_empty() && values.iter().all(Value::is_number),
        Value::Object(_) => false,
        _ => true,
    }
}

/// The column to predict and why: one of a usual name, else the last that varies.
fn target(names: &[String], rows: &[csv::StringRecord]) -> Option<(usize, String)> {
    let usual = |target: &str| names.iter().position(|name| name.eq_ignore_ascii_case(target));
    let found = TARGETS.iter().find_map(|target| usual(target));
    let varies = |&index: &usize| {
        let mut cells = rows.iter().map(|row| row.get(index));
        cells.next().is_none_or(|first| cells.any(|cell| cell != first))
    };
    let last = (0..names.len()).rev().find(varies).or(names.len().checked_sub(1))?;
    Some(match found {
        Some(index) => (index, format!("`{}` is the target, by its name", names[index])),
        None => (last, format!("`{}` is the target, as the last column that varies", names[last])),
    })
}

/// Whether the cells of a target are classes, and why.
fn are_classes(cells: &[String]) -> (bool, String) {
    let different: BTreeSet<&str> = cells.iter().map(String::as_str).collect();
    let n = different.len();
    if different.iter().any(|cell| cell.parse::<f64>().is_err()) {
        return (true, format!("its {n} words are classes"));
    }
    let are_whole = different.iter().all(|cell| cell.parse::<i64>().is_ok());
    let are_few = (2..=MAX_CLASSES).contains(&n) && cells.len() >= ROWS_OF_A_CLASS * n;
    if are_whole && are_few {
        (true, format!("its {n} whole numbers are taken for classes"))
    } else {
        (false, "its values are numbers".to_owned())
    }
}

fn text(file: &Path) -> Result<String, Refusal> {
    let bytes = fs::read(file)
        .map_err(|error| unusable(file, &format!("cannot be read: {error}"), "check its path"))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_found_by_its_name_or_its_place() {
        let rows = [["1", "2000"], ["1", "2010"]].map(|cells| csv::StringRecord::from(&cells[..]));
        let at = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            target(&names, &rows).map(|(at, _)| at)
        };
        assert_eq!(at(&["year", "price"]), Some(1));
        // The rows lack its cells.
        assert_eq!(at(&["x", "year", "constant"]), Some(1));
        assert_eq!(at(&["Price", "rooms"]), Some(0));
        assert_eq!(at(&["rooms", "year"]), Some(1));
        assert_eq!(at(&[]), None);
    }

    #[test]
    fn words_and_few_whole_numbers_are_classes() {
        let classes = |cells: &[&str], times: usize| {
            let cells: Vec<String> = cells.repeat(times).into_iter().map(str::to_owned).collect();
            are_classes(&cells).0
        };
        assert!(classes(&["cat", "dog"], 1));
        assert!(classes(&["0", "1", "2"], 10));
        assert!(!classes(&["0", "1", "2"], 2), "two rows of each");
        assert!(!classes(&["0.5", "1"], 50));
    }
}
