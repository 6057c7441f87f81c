//! What the columns of a table hold beside numbers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::data::{Features, is_date};

/// Different words from which on a column may be one of names, of which each row has its own.
const MIN_NAMES: usize = 20;

/// Columns that are not plain numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Columns {
    /// Each row has a word of its own.
    ignore: Vec<String>,
    categorical: Vec<String>,
    dates: Vec<String>,
    /// Whether a number or a date is missing.
    has_empty: bool,
    /// Words that stand for missing numbers, beside those that are always taken so.
    na_values: Vec<String>,
}

/// What a column holds.
enum Holds {
    Numbers,
    Dates,
    Categories,
    /// Nothing that another row has, too.
    Names,
}

impl Holds {
    fn of(name: &str, cells: &[&str]) -> Self {
        if cells.is_empty() || is_number_of_row(name) && are_names(cells) {
            Self::Names
        } else if cells.iter().all(|cell| cell.parse::<f64>().is_ok()) {
            Self::Numbers
        } else if cells.iter().all(|cell| is_date(cell)) {
            Self::Dates
        } else if are_names(cells) {
            Self::Names
        } else {
            Self::Categories
        }
    }
}

/// Words that programs write where a number is not known.
const UNKNOWN: [&str; 6] = ["?", "-", "--", "missing", "unknown", "#N/A"];

/// The cells without those that stand for missing numbers, where all others are numbers; such words
/// are added to `na_values`.
fn given<'a>(cells: Vec<&'a str>, na_values: &mut Vec<String>) -> Vec<&'a str> {
    let is_unknown = |cell: &&str| UNKNOWN.contains(cell);
    let (unknown, known): (Vec<&str>, Vec<&str>) = cells.iter().copied().partition(is_unknown);
    let are_numbers = !known.is_empty() && known.iter().all(|cell| cell.parse::<f64>().is_ok());
    if !are_numbers {
        return cells;
    }
    for word in unknown {
        if !na_values.iter().any(|known| known == word) {
            na_values.push(word.to_owned());
        }
    }
    known
}

/// Whether many rows have each a word of their own.
fn are_names(cells: &[&str]) -> bool {
    let different: BTreeSet<&&str> = cells.iter().collect();
    different.len() >= MIN_NAMES && different.len() == cells.len()
}

/// Whether a column is called as a row's own number is.
fn is_number_of_row(name: &str) -> bool {
    let name = name.to_lowercase();
    let usual = ["", "id", "index", "row", "unnamed: 0"];
    usual.contains(&name.as_str()) || name.ends_with("_id")
}

impl Columns {
    /// Those of a table with these names and rows, of which one is the target.
    pub(super) fn of(names: &[String], rows: &[csv::StringRecord], target: usize) -> Self {
        let mut found = Self::default();
        let usual = Features::default();
        for (at, name) in names.iter().enumerate().filter(|(at, _)| *at != target) {
            let cells = rows.iter().filter_map(|row| row.get(at));
            let given: Vec<&str> = cells.filter(|cell| !usual.is_empty(cell)).collect();
            let given = self::given(given, &mut found.na_values);
            let lacks_some = given.len() < rows.len();
            match Holds::of(name, &given) {
                Holds::Numbers => found.has_empty |= lacks_some,
                Holds::Dates => {
                    found.dates.push(name.clone());
                    found.has_empty |= lacks_some;
                }
                Holds::Categories => found.categorical.push(name.clone()),
                Holds::Names => found.ignore.push(name.clone()),
            }
        }
        found
    }

    /// Whether a column is one of names.
    pub(super) fn ignores(&self, name: &str) -> bool {
        self.ignore.iter().any(|ignored| ignored == name)
    }

    /// As options.
    pub(super) fn options(&self) -> Vec<(&'static str, Value)> {
        let mut options = Vec::new();
        if !self.ignore.is_empty() {
            options.push(("ignore", json!(self.ignore)));
        }
        let mut features = serde_json::Map::new();
        for (key, names) in [("categorical", &self.categorical), ("dates", &self.dates)] {
            if !names.is_empty() {
                features.insert(key.to_owned(), json!(names));
            }
        }
        if !self.na_values.is_empty() {
            features.insert("na_values".to_owned(), json!(self.na_values));
        }
        if self.has_empty {
            features.insert("missing".to_owned(), "median".into());
        }
        if !features.is_empty() {
            options.push(("features", features.into()));
        }
        options
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_mark_among_numbers_is_a_missing_one() {
        let names = ["age", "city", "y"].map(str::to_owned);
        let row = |i: usize| {
            let city = ["?", "Bern"][i % 2];
            csv::StringRecord::from(vec![if i == 3 { "?" } else { "30" }, city, "1"])
        };
        let rows: Vec<csv::StringRecord> = (0..30).map(row).collect();
        let features = json!({ "categorical": ["city"], "na_values": ["?"], "missing": "median" });
        assert_eq!(Columns::of(&names, &rows, 2).options(), [("features", features)]);
    }

    #[test]
    fn words_dates_and_empty_cells_become_options() {
        let names = ["id", "city", "sold", "age", "y", "row"].map(str::to_owned);
        let row = |i: usize| {
            let (city, age) = (["Rome", "Bern"][i % 2], if i == 3 { "NA" } else { "30" });
            csv::StringRecord::from(vec![
                &format!("p{i}"),
                city,
                "2024-01-31",
                age,
                "1",
                &format!("{}", i + 7),
            ])
        };
        let rows: Vec<csv::StringRecord> = (0..30).map(row).collect();
        let columns = Columns::of(&names, &rows, 4);
        let features = json!({ "categorical": ["city"], "dates": ["sold"], "missing": "median" });
        assert_eq!(columns.options(), [("ignore", json!(["id", "row"])), ("features", features)]);
        let plain = Columns::of(&names[3..5], &[csv::StringRecord::from(vec!["1", "2"])], 1);
        assert_eq!(plain.options(), []);
    }
}
