//! Contents of the columns of a table: numbers, words or dates, and columns that are left out.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};

use crate::data::{MissingValues, is_date};
use crate::init::names::{count, named};
use crate::init::recognised::unusable;
use crate::user_error::ErrorPage;

/// Different words from which on a column may be one of names, of which each row has its own.
const MIN_NAMES: usize = 20;
/// Different times of day, from which on they are no categories.
const MAX_TIMES: usize = 24;
/// Different numbers with a unit up to which they may be categories.
const MAX_MEASURES: usize = 10;
/// Different cells of a column of numbers that are no numbers, above which it is one of words.
const MAX_BAD: usize = 10;

/// A table with its cells as text.
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

    /// The table with only these columns.
    pub(super) fn only(&self, names: &[&String]) -> Self {
        let places: Vec<usize> = names.iter().filter_map(|name| self.place(name)).collect();
        let row = |row: &csv::StringRecord| {
            places.iter().map(|&at| row.get(at).unwrap_or_default()).collect()
        };
        let names = places.iter().map(|&at| self.names[at].clone()).collect();
        Self { names, rows: self.rows.iter().map(row).collect(), lines: self.lines.clone() }
    }

    /// The index of the column `name`.
    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|other| other == name)
    }
}

/// A cell that differs in type from the rest of its column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadCell {
    pub(super) line: u64,
    pub(super) word: String,
}

/// Content of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ColumnContent {
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

impl ColumnContent {
    /// Infers the content from the cells of the column `name` that are not empty.
    pub(super) fn of(name: &str, cells: &[(u64, &str)]) -> Self {
        if cells.is_empty() {
            return Self::Nothing("all of its cells are empty".to_owned());
        }
        let has_decimals = || cells.iter().any(|(_, cell)| cell.contains('.'));
        if is_number_of_row(name) && each_differs(cells) && !has_decimals() {
            return Self::Nothing("each row has its own".to_owned());
        }
        if are_epochs(name, cells) {
            return Self::Dates(Vec::new());
        }
        if let Some(bad) = except_few(cells, |cell| cell.parse::<f64>().is_ok()) {
            return Self::Numbers(bad);
        }
        if let Some(bad) = except_few(cells, is_date) {
            return Self::Dates(bad);
        }
        if let Some(NumberFormat { line, cell, what, plain }) = formatted(cells) {
            return Self::Nothing(format!(
                "its numbers are written with {what}, such as `{cell}` in line {line}: write {plain}"
            ));
        }
        let is_address = |cell: &str| cell.starts_with("http://") || cell.starts_with("https://");
        if cells.iter().all(|(_, cell)| is_address(cell)) {
            return Self::Nothing("it holds addresses on the web, which are not read".to_owned());
        }
        if distinct(cells) > MAX_TIMES && cells.iter().all(|(_, cell)| is_time_of_day(cell)) {
            return Self::Nothing(
                "it holds times of day: to use them, join them with the date into one column, as in \
                 `2024-01-31 10:00`"
                    .to_owned(),
            );
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

/// True if a column holds seconds, milliseconds ... since 1970, by its name and its digits.
fn are_epochs(name: &str, cells: &[(u64, &str)]) -> bool {
    let name = name.to_lowercase();
    let mut words = name.split(|c: char| !c.is_alphanumeric());
    let is_called_so = name.contains("time")
        || name.contains("date")
        || words.any(|word| ["ts", "epoch", "unix", "created", "updated"].contains(&word));
    let is_epoch = |cell: &str| {
        let (whole, fraction) = cell.split_once('.').unwrap_or((cell, ""));
        let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        matches!(whole.len(), 9 | 10 | 12 | 13 | 15 | 16 | 18 | 19)
            && are_digits(whole)
            && are_digits(fraction)
            && !whole.starts_with('0')
    };
    is_called_so && cells.iter().all(|(_, cell)| is_epoch(cell))
}

/// True if a cell is a time of day: `10:00`, `23:59:59`.
pub(super) fn is_time_of_day(cell: &str) -> bool {
    let parts: Vec<&str> = cell.split(':').collect();
    let is_below = |part: &str, end: u8| {
        (1..=2).contains(&part.len()) && part.parse::<u8>().is_ok_and(|number| number < end)
    };
    (2..=3).contains(&parts.len())
        && is_below(parts[0], 24)
        && parts[1..].iter().all(|part| part.len() == 2 && is_below(part, 60))
}

/// Numbers that are written in a way that is not read: one of them with its line, what they are
/// written with, and the plain number.
#[derive(Debug, PartialEq)]
pub(super) struct NumberFormat<'a> {
    pub(super) line: u64,
    pub(super) cell: &'a str,
    pub(super) what: String,
    /// "`1234`", or both readings if it is ambiguous.
    pub(super) plain: String,
}

/// Finds the formatting of a column most of whose cells are numbers, some with decimal commas,
/// separated thousands, currencies, percent signs or a unit.
pub(super) fn formatted<'a>(cells: &[(u64, &'a str)]) -> Option<NumberFormat<'a>> {
    let found: Vec<(u64, &str, MarkedNumber<'_>)> = cells
        .iter()
        .filter_map(|(line, cell)| Some((*line, *cell, MarkedNumber::of(cell)?)))
        .collect();
    let plain = |(_, cell, _): &&(u64, &str, MarkedNumber<'_>)| cell.parse::<f64>().is_ok();
    let (line, cell, first) = found.iter().find(|it| !plain(it))?;
    if found.len() * 10 < cells.len() * 9 {
        return None;
    }
    if !first.unit.is_empty() {
        let alike = found.iter().filter(|(.., it)| it.unit.eq_ignore_ascii_case(first.unit));
        let numbers: BTreeSet<&str> = found.iter().map(|(.., it)| it.digits).collect();
        // `36 months` and `60 months` are categories.
        if alike.count() * 10 < found.len() * 9 || numbers.len() <= MAX_MEASURES {
            return None;
        }
    }
    let separators = Separators::of(found.iter().map(|(.., it)| it.digits));
    let number = separators.plain(first.digits)?;
    let sign = if cell.contains('-') { "-" } else { "" };
    let mut plain = format!("`{sign}{number}`");
    let what = match first.mark {
        Mark::Currency => "a currency".to_owned(),
        Mark::Percent => "a percent sign".to_owned(),
        Mark::None if !first.unit.is_empty() => format!("the unit `{}`", first.unit),
        Mark::None => {
            if separators == Separators::Unclear {
                let point = first.digits.replace(',', ".");
                plain += &format!(" (or `{sign}{point}`, if it is a decimal comma)");
            }
            separators.words(first.digits).to_owned()
        }
    };
    Some(NumberFormat { line: *line, cell, what, plain })
}

/// A number with the marks around it.
struct MarkedNumber<'a> {
    mark: Mark,
    /// The number without its sign: digits, and what separates them.
    digits: &'a str,
    /// Word after it that is no currency or percent sign: `cm`.
    unit: &'a str,
}

#[derive(Clone, Copy, PartialEq)]
enum Mark {
    None,
    Currency,
    Percent,
}

impl<'a> MarkedNumber<'a> {
    const CURRENCIES: [&'static str; 22] = [
        "US$", "R$", "$", "€", "£", "¥", "₹", "₽", "₩", "₺", "฿", "USD", "EUR", "GBP", "CHF",
        "INR", "JPY", "CNY", "Rs.", "Rs", "kr", "zł",
    ];
    /// Longest unit.
    const LONGEST: usize = 12;

    /// The number that a cell begins with, if nothing else than a currency or a sign stands before
    /// it, and a unit behind it.
    fn of(cell: &'a str) -> Option<Self> {
        let is_space = |c: char| matches!(c, ' ' | '\u{a0}' | '\u{202f}');
        let unsigned = |text: &'a str| text.trim_start_matches(['-', '+']).trim_start();
        let mut mark = Mark::None;
        let mut rest = unsigned(cell.trim());
        if let Some(after) = Self::CURRENCIES.iter().find_map(|sign| rest.strip_prefix(sign)) {
            (mark, rest) = (Mark::Currency, unsigned(after.trim_start()));
        }
        if !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            return None;
        }
        let is_of_number = |c: char| c.is_ascii_digit() || ".,'’".contains(c) || is_space(c);
        let end = rest.find(|c: char| !is_of_number(c)).unwrap_or(rest.len());
        let digits = rest[..end].trim_end_matches(|c: char| !c.is_ascii_digit());
        let mut unit = rest[digits.len()..].trim();
        if unit == "%" {
            (mark, unit) = (Mark::Percent, "");
        } else if Self::CURRENCIES.contains(&unit) {
            (mark, unit) = (Mark::Currency, "");
        }
        let begins =
            unit.is_empty() || unit.starts_with(|c: char| c.is_alphabetic() || "°\"".contains(c));
        let is_unit = begins
            && unit.chars().count() <= Self::LONGEST
            && unit.split(is_space).count() <= 2
            && !unit.contains([',', ':', ';'])
            // A multiplier of money is more than a unit.
            && (unit.is_empty() || mark == Mark::None);
        (is_unit && is_one_number(digits)).then_some(Self { mark, digits, unit })
    }
}

/// True if digits and separators are one number: not an address (`192.168.0.1`), feet and inches
/// (`5'11`), or two numbers (`12.5, 13.5`).
fn is_one_number(digits: &str) -> bool {
    let is_any = |c: char| !c.is_ascii_digit();
    let last = digits.chars().rev().find(|c| matches!(c, '.' | ','));
    let both = digits.contains('.') && digits.contains(',');
    let whole = match last {
        Some(last) if both || digits.matches(last).count() == 1 => {
            digits.rsplit_once(last).map_or(digits, |(whole, _)| whole)
        }
        _ => digits,
    };
    if last.is_some_and(|last| both && whole.contains(last)) {
        return false;
    }
    let groups: Vec<&str> = whole.split(is_any).collect();
    // India's groups above a thousand have two digits.
    let is_group = |(at, group): (usize, &&str)| {
        at == 0 || group.len() == 3 || (group.len() == 2 && at + 1 < groups.len())
    };
    digits.contains(|c: char| c.is_ascii_digit()) && groups.iter().enumerate().all(is_group)
}

/// Meaning of commas and points in the numbers of a column.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Separators {
    /// Points before decimals; all else stands between thousands.
    Point,
    /// Commas before decimals; all else stands between thousands.
    Comma,
    /// Commas before three digits in all numbers.
    Unclear,
}

impl Separators {
    /// Infers the separators from all numbers in a column.
    fn of<'a>(all: impl Iterator<Item = &'a str>) -> Self {
        let (mut points, mut commas, mut unclear, mut small) = (0, 0, 0, false);
        for digits in all {
            match (digits.rfind('.'), digits.rfind(',')) {
                (Some(point), Some(comma)) if point > comma => points += 1,
                (Some(_), Some(_)) => commas += 1,
                (Some(_), None) => points += 1,
                (None, Some(_)) => {
                    let (before, after) = digits.rsplit_once(',').unwrap_or_default();
                    // `0,270`, `12,5` and `1234,567` have decimals, `1,234,567` has not.
                    if before.contains(',') {
                        points += 1;
                    } else if after.len() != 3 || before.starts_with('0') || before.len() > 3 {
                        commas += 1;
                    } else {
                        unclear += 1;
                    }
                }
                (None, None) => small |= digits.len() <= 3,
            }
        }
        match (points, commas, unclear) {
            (0, 0, 1..) if !small => Self::Unclear,
            (points, commas, _) if commas > points => Self::Comma,
            _ => Self::Point,
        }
    }

    /// The number in plain form.
    fn plain(self, digits: &str) -> Option<String> {
        let decimal = if self == Self::Comma { ',' } else { '.' };
        let kept: String = digits.chars().filter(|&c| c.is_ascii_digit() || c == decimal).collect();
        let plain = match kept.matches(decimal).count() {
            0 | 1 => kept.replace(decimal, "."),
            // Points between thousands.
            _ => kept.replace(decimal, ""),
        };
        plain.parse::<f64>().is_ok().then_some(plain)
    }

    /// Names the separators in the number `digits`.
    fn words(self, digits: &str) -> &'static str {
        match self {
            Self::Comma if digits.contains(',') => "a decimal comma",
            _ if digits.contains(',') => "commas between thousands",
            _ if digits.contains('.') => "points between thousands",
            _ => "spaces or signs between thousands",
        }
    }
}

fn each_differs(cells: &[(u64, &str)]) -> bool {
    cells.len() >= MIN_NAMES && distinct(cells) == cells.len()
}

/// True if there are many words, of which hardly one is in two rows.
fn are_names(cells: &[(u64, &str)]) -> bool {
    let n = distinct(cells);
    n >= MIN_NAMES && n * 2 > cells.len()
}

fn distinct(cells: &[(u64, &str)]) -> usize {
    cells.iter().map(|(_, cell)| cell).collect::<BTreeSet<_>>().len()
}

/// True if a column has a usual name for the row's own number.
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
    /// True if a number or a date is missing.
    has_empty: bool,
    /// True if the target is missing in some row.
    lacks_targets: bool,
    /// Words that stand for missing numbers, beside those that are always taken so.
    missing_values: Vec<String>,
    /// Cells that are no numbers or dates as the rest of their column, in words.
    bad: Vec<String>,
}

impl Columns {
    /// The columns of a table, one of which is the target. Words of the target are declared as
    /// categories, too: they are a feature where another column is made the target.
    ///
    /// A row whose target is missing is no sample, so a bad cell of it counts as missing, too.
    pub(super) fn of(table: &Table, target: usize) -> Self {
        let mut found = Self::default();
        for (at, name) in table.names.iter().enumerate() {
            let cells = given(table, at);
            let holds = ColumnContent::of(name, &cells);
            if at == target {
                found.lacks_targets = cells.len() < table.rows.len();
                match holds {
                    ColumnContent::Categories => found.categorical.push(name.clone()),
                    ColumnContent::Numbers(bad) => {
                        found.lacks_targets |= !bad.is_empty();
                        found.read_as_missing(&format!("`{name}`"), "number", &bad);
                    }
                    ColumnContent::Dates(_) | ColumnContent::Nothing(_) => {}
                }
                continue;
            }
            found.push(name, holds, cells.len() < table.rows.len());
        }
        found
    }

    fn push(&mut self, name: &str, holds: ColumnContent, lacks_some: bool) {
        match holds {
            ColumnContent::Numbers(bad) => {
                self.has_empty |= lacks_some || !bad.is_empty();
                self.read_as_missing(&format!("`{name}`"), "number", &bad);
                self.numbers.push(name.to_owned());
            }
            ColumnContent::Dates(bad) => {
                self.has_empty |= lacks_some || !bad.is_empty();
                self.read_as_missing(&format!("`{name}`"), "date", &bad);
                self.dates.push(name.to_owned());
            }
            ColumnContent::Categories => self.categorical.push(name.to_owned()),
            ColumnContent::Nothing(why) => self.left_out.push((name.to_owned(), why)),
        }
    }

    /// Takes cells for missing values, and notes them.
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

    /// The same for these columns alone.
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

    /// A refusal if no column is left from which the target could be predicted, with the reasons.
    pub(super) fn without_features(&self, file: &Path, target: &str) -> Option<ErrorPage> {
        let mut names = self.numbers.iter().chain(&self.categorical).chain(&self.dates);
        if names.any(|name| name != target) {
            return None;
        }
        let reasons: Vec<String> =
            self.left_out.iter().map(|(name, why)| format!("\n  `{name}`: {why}")).collect();
        let more = reasons.len().saturating_sub(MAX_BAD);
        let and_more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
        let shown = reasons[..reasons.len() - more].concat() + &and_more;
        let what = format!("has no column from which `{target}` could be predicted{shown}");
        let is_said = |words: &str| self.left_out.iter().any(|(_, why)| why.contains(words));
        let help = if is_said("written with the unit") {
            "write the numbers alone, as shown; in Python, with the table as `t`: \
             `t[\"NAME\"] = t[\"NAME\"].str.extract(r\"([-.0-9]+)\")`"
        } else if is_said("written with") {
            "write the numbers plainly, as shown; `pandas.read_csv` reads them with `thousands=\",\"` \
             or `decimal=\",\"`, and `.to_csv` writes them so"
        } else {
            "add columns with numbers, dates or words that several rows share; texts of their own \
             are learnt with `data.name = \"tokens\"`, `\"instructions\"` or `\"chat\"`"
        };
        Some(unusable(file, &what, help))
    }

    /// True if a column is left out.
    pub(super) fn ignores(&self, name: &str) -> bool {
        self.left_out.iter().any(|(ignored, _)| ignored == name)
    }

    /// Options of the data set.
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

    /// Conclusions, without those of the target.
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

/// True if a cell counts as empty by the default of `data.missing_values`.
pub(super) fn is_empty(cell: &str) -> bool {
    MissingValues::default().holds(cell)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A table whose rows begin in line 2.
    pub(in crate::init) fn table<'a>(
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
            (
                "1,234",
                "commas between thousands, such as `1,234` in line 2: write `1234` (or `1.234`, if \
                 it is a decimal comma)",
            ),
            (
                "1,234,567",
                "commas between thousands, such as `1,234,567` in line 2: write `1234567`",
            ),
            (
                "1.234.567",
                "points between thousands, such as `1.234.567` in line 2: write `1234567`",
            ),
            ("0,270", "a decimal comma, such as `0,270` in line 2: write `0.270`"),
            ("-0,270", "a decimal comma, such as `-0,270` in line 2: write `-0.270`"),
            ("$3,750", "a currency, such as `$3,750` in line 2: write `3750`"),
            ("3,75 €", "a currency, such as `3,75 €` in line 2: write `3.75`"),
            ("12 %", "a percent sign, such as `12 %` in line 2: write `12`"),
            ("12,5%", "a percent sign, such as `12,5%` in line 2: write `12.5`"),
        ] {
            let columns = Columns::of(&table(&["x", "y"], (0..12).map(|_| vec![cell, "1"])), 1);
            assert_eq!(columns.options(), [("ignore", json!(["x"]))], "{cell}");
            let note = &columns.notes("y")[1].1;
            assert!(note.ends_with(words), "{note}");
        }
    }

    #[test]
    fn one_cell_tells_what_the_commas_of_its_column_are() {
        let of = |cells: &[&str]| {
            let cells: Vec<(u64, &str)> = (2..).zip(cells.iter().copied()).collect();
            formatted(&cells).map(|found| (found.what, found.plain))
        };
        let is = |what: &str, plain: &str| Some((what.to_owned(), plain.to_owned()));
        assert_eq!(of(&["1,270", "0,017"]), is("a decimal comma", "`1.270`"));
        assert_eq!(of(&["1,270", "12,5"]), is("a decimal comma", "`1.270`"));
        assert_eq!(of(&["1,270", "950"]), is("commas between thousands", "`1270`"));
        assert_eq!(of(&["1,270", "12.5"]), is("commas between thousands", "`1270`"));
        assert_eq!(of(&["1 270,5", "12,5"]), is("a decimal comma", "`1270.5`"));
        assert_eq!(of(&["1'270", "950"]), is("spaces or signs between thousands", "`1270`"));
        assert_eq!(of(&["1,00,270", "950"]), is("commas between thousands", "`100270`"));
        for no_number in ["192.168.0.1", "5'11", "12.5, 13.5", "1,2,3", "12:30", "red 7"] {
            assert_eq!(of(&[no_number]), None, "{no_number}");
        }
        assert_eq!(of(&["red", "1,5"]), None);
        assert_eq!(of(&["1.5", "2"]), None);
    }

    #[test]
    fn numbers_with_a_unit_are_left_out_and_few_are_categories() {
        let of = |n: usize, unit: &str| {
            let cells: Vec<String> = (0..60).map(|i| format!("{}{unit}", 150 + i % n)).collect();
            let cells: Vec<(u64, &str)> = (2..).zip(cells.iter().map(String::as_str)).collect();
            ColumnContent::of("x", &cells)
        };
        for unit in [" cm", "kg", " °C", " km/h", " sq ft", "m²"] {
            let ColumnContent::Nothing(why) = of(40, unit) else { panic!("{unit} is not seen") };
            let expected =
                format!("the unit `{}`, such as `150{unit}` in line 2: write `150`", unit.trim());
            assert!(why.ends_with(&expected), "{why}");
        }
        assert_eq!(of(2, " months"), ColumnContent::Categories);
        let cabins: Vec<String> =
            (0..60).map(|i| format!("{}{}", i % 30, ["A", "B"][i % 2])).collect();
        let cabins: Vec<(u64, &str)> = (2..).zip(cabins.iter().map(String::as_str)).collect();
        assert_eq!(ColumnContent::of("seat", &cabins), ColumnContent::Categories);
    }

    #[test]
    fn seconds_since_1970_are_dates_and_times_of_day_are_few_words_or_none() {
        let of = |name: &str, cell: fn(usize) -> String| {
            let cells: Vec<String> = (0..60).map(cell).collect();
            let cells: Vec<(u64, &str)> = (2..).zip(cells.iter().map(String::as_str)).collect();
            ColumnContent::of(name, &cells)
        };
        let seconds = |i: usize| (800_000_000 + 7 * i % 50).to_string();
        assert_eq!(of("timestamp", seconds), ColumnContent::Dates(Vec::new()));
        assert_eq!(of("phone", seconds), ColumnContent::Numbers(Vec::new()));
        assert_eq!(of("time", |i| (i % 50).to_string()), ColumnContent::Numbers(Vec::new()));
        assert_eq!(of("Time", |i| format!("{:02}:00", i % 24)), ColumnContent::Categories);
        let minutes = of("Time", |i| format!("10:{i:02}:00"));
        assert!(
            matches!(minutes, ColumnContent::Nothing(why) if why.contains("join them with the date"))
        );
    }

    #[test]
    fn reasons_are_given_where_no_column_is_left() {
        let texts: Vec<String> = (0..60).map(|i| format!("this is review {i}")).collect();
        let row = |i: usize| vec![texts[i].as_str(), ["pos", "neg"][i % 2]];
        let table = table(&["review", "y"], (0..60).map(row));
        let page = Columns::of(&table, 1).without_features(Path::new("x.csv"), "y").unwrap();
        let page = page.to_string();
        assert!(page.contains("`review`: nearly each row has a word of its own"), "{page}");
        assert!(Columns::of(&table, 0).without_features(Path::new("x.csv"), "review").is_none());
    }

    #[test]
    fn words_of_the_target_are_declared_as_what_they_are() {
        let row = |i: usize| vec!["3", ["ant", "bee"][i % 2]];
        let columns = Columns::of(&table(&["x", "y"], (0..12).map(row)), 1);
        assert_eq!(columns.options(), [("features", json!({ "categorical": ["y"] }))]);
        assert_eq!(columns.notes("y"), [("features", "`x`".to_owned())]);
    }
}
