//! What the columns of a table hold: numbers, words or dates, and what of them is left out.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::cli::init::formatting::{count, named};
use crate::data::{MissingValues, is_date};

/// Different words from which on a column may be one of names, of which each row has its own.
const MIN_NAMES: usize = 20;
/// Different cells of a column of numbers that are no numbers, above which it is one of words.
const MAX_BAD: usize = 10;

/// A table, as it is written.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) names: Vec<String>,
    pub(super) rows: Vec<csv::StringRecord>,
    /// The line of each row in its file.
    pub(super) lines: Vec<u64>,
}

impl Table {
    /// The cells of a column, with the lines that they are in.
    pub(super) fn cells(&self, at: usize) -> impl Iterator<Item = (u64, &str)> {
        let rows = self.rows.iter().zip(&self.lines);
        rows.map(move |(row, line)| (*line, row.get(at).unwrap_or_default()))
    }

    /// The same with only these columns.
    pub(super) fn only(&self, names: &[&String]) -> Self {
        let places: Vec<usize> = names.iter().filter_map(|name| self.place(name)).collect();
        let row = |row: &csv::StringRecord| {
            places.iter().map(|&at| row.get(at).unwrap_or_default()).collect()
        };
        let names = places.iter().map(|&at| self.names[at].clone()).collect();
        Self { names, rows: self.rows.iter().map(row).collect(), lines: self.lines.clone() }
    }

    /// The place of the column `name`.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|other| other == name)
    }
}

/// A cell that is not what the rest of its column is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadCell {
    pub(super) line: u64,
    pub(super) word: String,
}

/// What a column holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// Numbers, except in these cells.
    Numbers(Vec<BadCell>),
    /// Dates, except in these cells.
    Dates(Vec<BadCell>),
    Categories,
    /// Nothing that could be learnt from, and why.
    Nothing(String),
}

/// Words that programs write where a number is not known.
const UNKNOWN: [&str; 7] = ["?", "-", "--", "missing", "unknown", "#N/A", "NaT"];

impl Holds {
    /// Of the cells of the column `name` that are not empty.
    pub(super) fn of(name: &str, cells: &[(u64, &str)]) -> Self {
        if cells.is_empty() {
            return Self::Nothing("all of its cells are empty".to_owned());
        }
        let has_decimals = || cells.iter().any(|(_, cell)| cell.contains('.'));
        if is_number_of_row(name) && each_differs(cells) && !has_decimals() {
            return Self::Nothing("each row has its own".to_owned());
        }
        if let Some(bad) = except_few(cells, |cell| cell.parse::<f64>().is_ok()) {
            return Self::Numbers(bad);
        }
        if let Some(bad) = except_few(cells, is_date) {
            return Self::Dates(bad);
        }
        if let Some((line, cell, what, plain)) = formatted(cells) {
            return Self::Nothing(format!(
                "its numbers are written with {what}, such as `{cell}` in line {line}: write \
                 `{plain}`"
            ));
        }
        if are_names(cells) {
            return Self::Nothing("nearly each row has a word of its own".to_owned());
        }
        Self::Categories
    }
}

/// The cells that are not `so`, if they are few, or words for an unknown value; `None` if they are
/// many.
fn except_few(cells: &[(u64, &str)], is_so: impl Fn(&str) -> bool) -> Option<Vec<BadCell>> {
    let bad: Vec<&(u64, &str)> = cells.iter().filter(|(_, cell)| !is_so(cell)).collect();
    let slips = || bad.iter().filter(|(_, cell)| !UNKNOWN.contains(cell));
    // `27.O` is a slip of a number; a word may be a category.
    let are_nearly = slips().all(|(_, cell)| cell.contains(|c: char| c.is_ascii_digit()));
    let most = if are_nearly { cells.len() / 3 } else { cells.len() / 10 };
    let distinct: BTreeSet<&str> = bad.iter().map(|(_, cell)| *cell).collect();
    let are_few = slips().count() <= most && distinct.len() <= MAX_BAD && bad.len() < cells.len();
    let cell = |(line, word): &&(u64, &str)| BadCell { line: *line, word: (*word).to_owned() };
    are_few.then(|| bad.iter().map(cell).collect())
}

/// Where most cells are numbers with decimal commas, thousands apart, currencies or percent signs:
/// one of them with its line, what they are written with, and the plain number.
pub(super) fn formatted<'a>(
    cells: &[(u64, &'a str)],
) -> Option<(u64, &'a str, &'static str, String)> {
    let mut found = cells.iter().filter_map(|(line, cell)| {
        let (what, plain) = plain_number(cell)?;
        Some((*line, *cell, what, plain))
    });
    let first = found.next()?;
    let numbers = cells.iter().filter(|(_, cell)| cell.parse::<f64>().is_ok()).count();
    (1 + found.count() + numbers > cells.len() * 9 / 10).then_some(first)
}

/// What a number is written with, and the number as it is read.
fn plain_number(cell: &str) -> Option<(&'static str, String)> {
    let is_number = |text: &str| text.parse::<f64>().is_ok();
    let bare = cell.trim_matches(|c: char| "$€£¥ ".contains(c));
    if bare != cell && is_number(&bare.replace(',', "")) {
        return Some(("a currency", bare.replace(',', "")));
    }
    if let Some(number) = cell.strip_suffix('%').map(str::trim_end).filter(|it| is_number(it)) {
        return Some(("a percent sign", number.to_owned()));
    }
    let (before, after) = cell.rsplit_once(',')?;
    if after.len() == 3 && before.len() <= 3 + 4 * before.matches(',').count() {
        let number = cell.replace(',', "");
        return is_number(&number).then_some(("commas between thousands", number));
    }
    let number = format!("{}.{after}", before.replace('.', ""));
    is_number(&number).then_some(("a decimal comma", number))
}

fn each_differs(cells: &[(u64, &str)]) -> bool {
    cells.len() >= MIN_NAMES && distinct(cells) == cells.len()
}

/// Whether there are many words, of which hardly one is in two rows.
fn are_names(cells: &[(u64, &str)]) -> bool {
    let n = distinct(cells);
    n >= MIN_NAMES && n * 2 > cells.len()
}

fn distinct(cells: &[(u64, &str)]) -> usize {
    cells.iter().map(|(_, cell)| cell).collect::<BTreeSet<_>>().len()
}

/// Whether a column is called as a row's own number is.
fn is_number_of_row(name: &str) -> bool {
    let is_camel_case = name.ends_with("Id") || name.ends_with("ID");
    let name = name.to_lowercase();
    let usual = ["", "id", "index", "row", "unnamed: 0"];
    is_camel_case || usual.contains(&name.as_str()) || name.ends_with("_id")
}

/// The features of a table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Columns {
    numbers: Vec<String>,
    categorical: Vec<String>,
    dates: Vec<String>,
    /// Columns that are no features, and why.
    left_out: Vec<(String, String)>,
    /// Whether a number or a date is missing.
    has_empty: bool,
    /// Whether the target is missing in some row.
    lacks_targets: bool,
    /// Words that stand for missing numbers, beside those that are always taken so.
    missing_values: Vec<String>,
    /// Cells that are no numbers or dates as the rest of their column, in words.
    bad: Vec<String>,
}

impl Columns {
    /// Those of a table of which one column is the target. Words of the target are declared as
    /// categories, too: they are a feature where another column is made the target.
    ///
    /// A row whose target is missing is no sample, so a bad cell of it counts as missing, too.
    pub(super) fn of(table: &Table, target: usize) -> Self {
        let mut found = Self::default();
        for (at, name) in table.names.iter().enumerate() {
            let cells = given(table, at);
            let holds = Holds::of(name, &cells);
            if at == target {
                found.lacks_targets = cells.len() < table.rows.len();
                match holds {
                    Holds::Categories => found.categorical.push(name.clone()),
                    Holds::Numbers(bad) => {
                        found.lacks_targets |= !bad.is_empty();
                        found.read_as_missing(&format!("`{name}`"), "number", &bad);
                    }
                    Holds::Dates(_) | Holds::Nothing(_) => {}
                }
                continue;
            }
            found.push(name, holds, cells.len() < table.rows.len());
        }
        found
    }

    fn push(&mut self, name: &str, holds: Holds, lacks_some: bool) {
        match holds {
            Holds::Numbers(bad) => {
                self.has_empty |= lacks_some || !bad.is_empty();
                self.read_as_missing(&format!("`{name}`"), "number", &bad);
                self.numbers.push(name.to_owned());
            }
            Holds::Dates(bad) => {
                self.has_empty |= lacks_some || !bad.is_empty();
                self.read_as_missing(&format!("`{name}`"), "date", &bad);
                self.dates.push(name.to_owned());
            }
            Holds::Categories => self.categorical.push(name.to_owned()),
            Holds::Nothing(why) => self.left_out.push((name.to_owned(), why)),
        }
    }

    /// Takes cells for missing values, and says which.
    fn read_as_missing(&mut self, place: &str, what: &str, bad: &[BadCell]) {
        for BadCell { line, word } in bad {
            if !self.missing_values.contains(word) {
                self.missing_values.push(word.clone());
                self.bad.push(format!(
                    "`{word}` in {place}, line {line}, is not a {what}: it counts as a missing value; \
                     correct the cell to use it"
                ));
            }
        }
    }

    /// Adds what cells of another part of the data, in the file `file`, hold beside numbers.
    pub(super) fn check_part(&mut self, file: &str, part: &Table) {
        let kinds: [(&[String], &str, fn(&str) -> bool); 2] = [
            (&self.numbers.clone(), "number", |cell| cell.parse::<f64>().is_ok()),
            (&self.dates.clone(), "date", is_date),
        ];
        for (names, what, is_so) in kinds {
            for (name, at) in names.iter().filter_map(|name| Some((name, part.place(name)?))) {
                let cells = given(part, at);
                self.has_empty |= cells.len() < part.rows.len();
                let bad = except_few(&cells, is_so).unwrap_or_default();
                self.has_empty |= !bad.is_empty();
                self.read_as_missing(&format!("`{name}` of `{file}`"), what, &bad);
            }
        }
    }

    /// Leaves out a column that is no feature for another reason than its cells.
    pub(super) fn leave_out(&mut self, name: &str, why: &str) {
        for names in [&mut self.numbers, &mut self.categorical, &mut self.dates] {
            names.retain(|other| other != name);
        }
        self.left_out.retain(|(other, _)| other != name);
        self.left_out.push((name.to_owned(), why.to_owned()));
    }

    /// What is known of these columns.
    pub(super) fn among(&self, names: &[String]) -> Self {
        let of = |own: &[String]| own.iter().filter(|name| names.contains(name)).cloned().collect();
        Self {
            numbers: of(&self.numbers),
            categorical: of(&self.categorical),
            dates: of(&self.dates),
            left_out: Vec::new(),
            has_empty: self.has_empty,
            lacks_targets: self.lacks_targets,
            missing_values: self.missing_values.clone(),
            bad: self.bad.clone(),
        }
    }

    /// Whether a column is left out.
    pub(super) fn ignores(&self, name: &str) -> bool {
        self.left_out.iter().any(|(ignored, _)| ignored == name)
    }

    /// As options.
    pub(super) fn options(&self) -> Vec<(&'static str, Value)> {
        let mut options = Vec::new();
        if !self.left_out.is_empty() {
            let names: Vec<&str> = self.left_out.iter().map(|(name, _)| name.as_str()).collect();
            options.push(("ignore", json!(names)));
        }
        let mut features = serde_json::Map::new();
        for (key, names) in [("categorical", &self.categorical), ("dates", &self.dates)] {
            if !names.is_empty() {
                features.insert(key.to_owned(), json!(names));
            }
        }
        if !self.missing_values.is_empty() {
            let usual = ["pandas".to_owned()];
            options.push(("missing_values", json!([&usual, &self.missing_values[..]].concat())));
        }
        if self.lacks_targets {
            options.push(("drop_unlabelled", true.into()));
        }
        if self.has_empty {
            features.insert("missing".to_owned(), "median".into());
        }
        if !features.is_empty() {
            options.push(("features", features.into()));
        }
        options
    }

    /// What was concluded, without the target.
    pub(super) fn notes(&self, target: &str) -> Vec<(&'static str, String)> {
        let kinds =
            [("", &self.numbers), (" (words)", &self.categorical), (" (dates)", &self.dates)];
        let listed = kinds.into_iter().filter_map(|(what, names)| {
            let names: Vec<&str> =
                names.iter().map(String::as_str).filter(|name| *name != target).collect();
            (!names.is_empty()).then(|| format!("{}{what}", named(&names)))
        });
        let features = listed.collect::<Vec<_>>().join("; ");
        let mut notes = vec![("features", features)];
        notes.extend(
            self.left_out.iter().map(|(name, why)| ("left out", format!("`{name}`: {why}"))),
        );
        let more = self.bad.len().saturating_sub(MAX_BAD);
        notes.extend(self.bad.iter().take(MAX_BAD).map(|bad| ("bad cell", bad.clone())));
        notes.extend((more > 0).then(|| ("bad cell", format!("and {} more", count(more)))));
        notes
    }
}

/// The cells of a column that are not empty.
pub(super) fn given(table: &Table, at: usize) -> Vec<(u64, &str)> {
    table.cells(at).filter(|(_, cell)| !is_empty(cell)).collect()
}

/// Whether a cell counts as empty, as `data.missing_values` has it by default.
pub(super) fn is_empty(cell: &str) -> bool {
    MissingValues::default().holds(cell)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A table whose rows begin in line 2.
    pub(in crate::cli::init) fn table<'a>(
        names: &[&str],
        rows: impl IntoIterator<Item = Vec<&'a str>>,
    ) -> Table {
        let rows: Vec<csv::StringRecord> = rows.into_iter().map(csv::StringRecord::from).collect();
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Table { names, lines: (2..).take(rows.len()).collect(), rows }
    }

    #[test]
    fn a_question_mark_among_numbers_is_a_missing_one() {
        let row = |i: usize| vec![if i == 3 { "?" } else { "30" }, ["?", "Bern"][i % 2], "1"];
        let table = table(&["age", "city", "y"], (0..30).map(row));
        let features = json!({ "categorical": ["city"], "missing": "median" });
        let missing = json!(["pandas", "?"]);
        let expected = [("missing_values", missing), ("features", features)];
        assert_eq!(Columns::of(&table, 2).options(), expected);
    }

    #[test]
    fn words_dates_and_empty_cells_become_options() {
        let numbers: Vec<String> = (0..30).map(|i| format!("{}", i + 7)).collect();
        let ids: Vec<String> = (0..30).map(|i| format!("p{i}")).collect();
        let row = |i: usize| {
            let (city, age) = (["Rome", "Bern"][i % 2], if i == 3 { "NA" } else { "30" });
            vec![ids[i].as_str(), city, "2024-01-31", age, "1", numbers[i].as_str()]
        };
        let whole = table(&["id", "city", "sold", "age", "y", "row"], (0..30).map(row));
        let columns = Columns::of(&whole, 4);
        let features = json!({ "categorical": ["city"], "dates": ["sold"], "missing": "median" });
        assert_eq!(columns.options(), [("ignore", json!(["id", "row"])), ("features", features)]);
        let plain = Columns::of(&table(&["age", "y"], [vec!["1", "2"]]), 1);
        assert_eq!(plain.options(), []);
    }

    #[test]
    fn one_bad_cell_makes_no_column_of_words() {
        for bad in ["632.6*", "27.O", "1,234", "12%", "$3750", "NaT", "n.a."] {
            let row = |i: usize| vec![if i == 3 { bad } else { "3.5" }, "1"];
            let columns = Columns::of(&table(&["x", "y"], (0..12).map(row)), 1);
            let missing = json!(["pandas", bad]);
            let expected =
                [("missing_values", missing), ("features", json!({ "missing": "median" }))];
            assert_eq!(columns.options(), expected, "{bad}");
            let notes = columns.notes("y");
            assert!(
                notes[1].1.starts_with(&format!("`{bad}` in `x`, line 5, is not")),
                "{notes:?}"
            );
        }
        let row = |i: usize| vec![["red", "7"][i % 2], "1"];
        let words = Columns::of(&table(&["x", "y"], (0..12).map(row)), 1);
        assert_eq!(words.options(), [("features", json!({ "categorical": ["x"] }))]);
        let row = |i: usize| vec![if i == 3 { "NaT" } else { "2024-01-31" }, "1"];
        let dates = Columns::of(&table(&["x", "y"], (0..12).map(row)), 1);
        let features = json!({ "dates": ["x"], "missing": "median" });
        let missing = json!(["pandas", "NaT"]);
        assert_eq!(dates.options(), [("missing_values", missing), ("features", features)]);
    }

    #[test]
    fn numbers_of_another_form_are_left_out_with_the_reason() {
        for (cell, words) in [
            ("32,1", "a decimal comma, such as `32,1` in line 2: write `32.1`"),
            ("1.234,5", "a decimal comma, such as `1.234,5` in line 2: write `1234.5`"),
            ("1,234", "commas between thousands, such as `1,234` in line 2: write `1234`"),
            ("$3,750", "a currency, such as `$3,750` in line 2: write `3750`"),
            ("12 %", "a percent sign, such as `12 %` in line 2: write `12`"),
        ] {
            let columns = Columns::of(&table(&["x", "y"], (0..12).map(|_| vec![cell, "1"])), 1);
            assert_eq!(columns.options(), [("ignore", json!(["x"]))], "{cell}");
            let note = &columns.notes("y")[1].1;
            assert!(note.ends_with(words), "{note}");
        }
    }

    #[test]
    fn words_of_the_target_are_declared_as_what_they_are() {
        let row = |i: usize| vec!["3", ["ant", "bee"][i % 2]];
        let columns = Columns::of(&table(&["x", "y"], (0..12).map(row)), 1);
        assert_eq!(columns.options(), [("features", json!({ "categorical": ["y"] }))]);
        assert_eq!(columns.notes("y"), [("features", "`x`".to_owned())]);
    }
}
