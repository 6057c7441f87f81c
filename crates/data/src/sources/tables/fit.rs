//! Statistics of each feature over the training rows: means, deviations, categories, replacements
//! of empty cells.
//!
//! They are computed once, when a run begins, and stored in its plan, so that evaluations and
//! resumes see the same numbers. Empty cells are filled in before a column is standardised, as in
//! scikit-learn's `Pipeline` of `SimpleImputer` and `StandardScaler`; categories are those of its
//! `OneHotEncoder`.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::kind::Options;
use crate::sources::dates::DateForm;
use crate::sources::tables::column::{Cells, Column, Words, truth_values};
use crate::sources::tables::dates::DateFeature;
use crate::sources::tables::features::{CellRules, ColumnKind, Features, Missing};

/// Statistics of the training rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Fit {
    /// Features in the order of the columns.
    pub(crate) features: Vec<Feature>,
    /// Scale of each number to predict; empty if these are not standardised.
    #[serde(default)]
    pub(crate) targets: Vec<Scale>,
}

/// A column that something is predicted from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Feature {
    pub(crate) name: String,
    pub(crate) encoding: Encoding,
}

/// Encoding of a column as numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Encoding {
    /// The number itself.
    Number(NumberFit),
    /// 1 at the place of its category, in this order; "" is that of empty cells.
    OneHot(Vec<String>),
    /// Features of a date, as one number or two each.
    Date(DateFit),
}

/// A number's column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NumberFit {
    pub(crate) scale: Scale,
    /// Replacement of an empty cell.
    pub(crate) fill: Option<f64>,
    /// Training rows whose cell is empty.
    pub(crate) n_empty: usize,
    /// True if a further number is 1 for empty cells.
    pub(crate) indicator: bool,
}

/// A date's column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DateFit {
    /// Extracted features.
    pub(crate) parts: Vec<DateFeature>,
    /// True if cyclic features are given by sine and cosine.
    pub(crate) cyclic: bool,
    /// Statistics of each number; sines and cosines are not standardised.
    pub(crate) numbers: Vec<NumberFit>,
    /// The format in which dates are written.
    #[serde(default)]
    pub(crate) form: DateForm,
}

/// Mean and deviation of a column.
pub(crate) type Scale = (f64, f64);

/// The numbers of rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Encoded {
    /// Numbers of one row after the other, without categories.
    pub(crate) numbers: Vec<f32>,
    /// The place of each category, row after row; [`UNKNOWN`] of one that no training row has.
    pub(crate) categories: Vec<u32>,
    /// Unknown categories, by column.
    pub(crate) unknown: BTreeMap<String, UnknownCategory>,
}

/// Cells of a column whose category no training row has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownCategory {
    /// Number of such cells.
    pub(crate) count: usize,
    /// The row of the first one.
    pub(crate) row: usize,
    /// Contents of that cell.
    pub(crate) word: String,
}

/// A category that no training row has.
pub(crate) const UNKNOWN: u32 = u32::MAX;
/// Names of categories that are shown.
const MAX_SHOWN: usize = 5;
/// Categories from which on there may be too many for the rows.
const MANY: usize = 20;
/// Columns that have a line each.
const MAX_LINES: usize = 40;

impl Fit {
    const FOUND: &'static str = "fit";

    /// Computes the statistics of the rows of `columns`.
    pub(crate) fn of(columns: &[Column], features: &Features) -> Result<Self, String> {
        let feature = |column: &Column| {
            let encoding = match &column.cells {
                Cells::Numbers(numbers) => Encoding::Number(
                    NumberFit::of(numbers, features, Scaled::Yes)
                        .ok_or_else(|| without_values(column))?,
                ),
                Cells::Words(words) => Encoding::OneHot(sorted(words)),
                Cells::Dates(form, _) => Encoding::Date(DateFit::of(column, form, features)?),
            };
            Ok(Feature { name: column.name.clone(), encoding })
        };
        let features = columns.iter().map(feature).collect::<Result<_, String>>()?;
        Ok(Self { features, targets: Vec::new() })
    }

    /// The statistics that a run stored; `None` for runs from before they were stored.
    pub(crate) fn found(found: &Options) -> Option<Self> {
        serde_json::from_value(found.get(Self::FOUND)?.clone()).ok()
    }

    /// The statistics as a run stores them.
    pub(crate) fn kept(&self) -> Options {
        let value = serde_json::to_value(self).unwrap_or_default();
        [(Self::FOUND.to_owned(), value)].into()
    }

    /// Describes the features for other programs. The targets are described with their names
    /// elsewhere.
    fn described(&self) -> Value {
        let encoding = |encoding: &Encoding| match encoding {
            Encoding::Date(date) => json!({ "date": date.described() }),
            encoding => json!(encoding),
        };
        let feature = |Feature { name, encoding: own }: &Feature| json!({ "name": name, "encoding": encoding(own) });
        json!({ "features": self.features.iter().map(feature).collect::<Vec<_>>() })
    }

    /// Columns, with their number of empty cells, that are filled in where it may not be meant: all
    /// of these rows are empty, or the column was never empty in the training rows.
    pub(crate) fn filled(&self, columns: &[Column], rows: Range<usize>) -> Vec<(String, usize)> {
        let filled = |(feature, column): (&Feature, &Column)| {
            let n_empty = column.empty_in(rows.clone());
            let is_known = match &feature.encoding {
                Encoding::Number(number) => number.n_empty > 0,
                Encoding::Date(date) => date.numbers.first().is_some_and(|date| date.n_empty > 0),
                Encoding::OneHot(categories) => categories.iter().any(String::is_empty),
            };
            // An unknown category is reported as one.
            let is_unknown = matches!(feature.encoding, Encoding::OneHot(_)) && !is_known;
            let is_told = n_empty > 0 && (n_empty == rows.len() || !is_known) && !is_unknown;
            is_told.then(|| (column.name.clone(), n_empty))
        };
        self.features.iter().zip(columns).filter_map(filled).collect()
    }

    /// Names of the features.
    pub(crate) fn names(&self) -> Vec<String> {
        self.features.iter().map(|feature| feature.name.clone()).collect()
    }

    /// Type that a column was read as.
    pub(crate) fn kind(&self, name: &str) -> Option<ColumnKind> {
        let feature = self.features.iter().find(|feature| feature.name == name)?;
        Some(match feature.encoding {
            Encoding::Number(_) => ColumnKind::Number,
            Encoding::OneHot(_) => ColumnKind::Category,
            Encoding::Date(_) => ColumnKind::Date,
        })
    }

    /// A category of a column that is the same number as `word`, but written otherwise.
    pub(crate) fn alike(&self, name: &str, word: &str) -> Option<&str> {
        let number = word.parse::<f64>().ok()?;
        let feature = self.features.iter().find(|feature| feature.name == name)?;
        let Encoding::OneHot(categories) = &feature.encoding else { return None };
        let mut categories = categories.iter().map(String::as_str);
        categories.find(|category| category.parse() == Ok(number))
    }

    /// The formats of columns of dates, by name.
    pub(crate) fn date_forms(&self) -> BTreeMap<String, DateForm> {
        let form = |feature: &Feature| match &feature.encoding {
            Encoding::Date(date) => Some((feature.name.clone(), date.form.clone())),
            _ => None,
        };
        self.features.iter().filter_map(form).collect()
    }

    /// Numbers of a row, but for categories.
    pub(crate) fn n_numbers(&self) -> usize {
        self.numbers().map(|number| 1 + usize::from(number.indicator)).sum()
    }

    /// Number of categories of each such column.
    pub(crate) fn one_hot(&self) -> Vec<usize> {
        let width = |feature: &Feature| match &feature.encoding {
            Encoding::OneHot(categories) => Some(categories.len()),
            _ => None,
        };
        self.features.iter().filter_map(width).collect()
    }

    /// Columns of categories that few of so many training rows share, in words.
    pub(crate) fn scattered(&self, rows: usize) -> impl Iterator<Item = String> {
        self.features.iter().filter_map(move |feature| match &feature.encoding {
            Encoding::OneHot(categories)
                if categories.len() >= MANY && 2 * categories.len() > rows =>
            {
                let name = &feature.name;
                let n = categories.len();
                Some(format!(
                    "`{name}` has {n} categories in {rows} training rows: what only names rows \
                     teaches nothing about others, so leave such a column out"
                ))
            }
            _ => None,
        })
    }

    fn numbers(&self) -> impl Iterator<Item = &NumberFit> {
        self.features.iter().flat_map(|feature| match &feature.encoding {
            Encoding::Number(number) => std::slice::from_ref(number),
            Encoding::Date(date) => &date.numbers,
            Encoding::OneHot(_) => &[],
        })
    }

    /// The numbers of rows with these columns: numbers and dates in the order of the columns, then
    /// what says where cells are empty, and the places of categories.
    pub(crate) fn encode(&self, columns: &[Column]) -> Encoded {
        let mut encoded = Encoded::default();
        // Column by column, and then row by row.
        let mut plain: Vec<Vec<f32>> = Vec::new();
        let mut indicators: Vec<Vec<f32>> = Vec::new();
        let mut places: Vec<Vec<u32>> = Vec::new();
        for (feature, column) in self.features.iter().zip(columns) {
            match (&feature.encoding, &column.cells) {
                (Encoding::OneHot(categories), Cells::Words(words)) => {
                    let (found, unknown) = found_places(words, categories);
                    encoded.unknown.extend(unknown.map(|told| (column.name.clone(), told)));
                    places.push(found);
                }
                (Encoding::Number(fit), Cells::Numbers(numbers)) => {
                    plain.push(fit.scaled(numbers));
                    indicators.extend(fit.indicator.then(|| empty(numbers)));
                }
                (Encoding::Date(fit), _) => {
                    for (fit, numbers) in fit.numbers.iter().zip(fit.columns(column)) {
                        plain.push(fit.scaled(&numbers));
                        indicators.extend(fit.indicator.then(|| empty(&numbers)));
                    }
                }
                _ => {}
            }
        }
        plain.extend(indicators);
        encoded.numbers = row_by_row(&plain);
        encoded.categories = row_by_row(&places);
        encoded
    }

    /// The columns, one a line; numbers without anything special together.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        let mut plain: Vec<&str> = Vec::new();
        for Feature { name, encoding } in &self.features {
            match encoding {
                Encoding::Number(number) if number.n_empty == 0 => plain.push(name),
                Encoding::Number(number) => {
                    let n = number.n_empty;
                    let fill = number.fill.unwrap_or_default();
                    lines.push(format!("`{name}`: number, {n} empty = {fill:.4}"));
                }
                Encoding::OneHot(categories) => lines.push(shown_categories(name, categories)),
                Encoding::Date(date) => lines.push(date.line(name)),
            }
        }
        if !plain.is_empty() {
            let names: Vec<String> = plain.iter().map(|name| format!("`{name}`")).collect();
            let more = names.len().saturating_sub(MAX_LINES);
            let shown = names[..names.len() - more].join(", ");
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            lines.insert(0, format!("numbers: {shown}{more}"));
        }
        let more = lines.len().saturating_sub(MAX_LINES);
        lines.truncate(MAX_LINES);
        lines.extend((more > 0).then(|| format!("... and {more} more columns")));
        lines
    }
}

impl CellRules<'_> {
    /// Statistics of the training rows, and what else another program needs: the cells that count
    /// as empty or as truth values, and the positions of the numbers of a row.
    pub(super) fn described(&self, found: &Options) -> Options {
        let said = [
            ("empty_cells", json!(self.missing.words())),
            ("truth_values", truth_values()),
            ("handle_unknown", json!(self.features.handle_unknown)),
            ("order", json!(["numbers and dates", "whether cells are empty", "categories"])),
        ];
        let mut described = found.clone();
        if let Some(fit) = Fit::found(found) {
            described.insert(Fit::FOUND.to_owned(), fit.described());
        }
        described.extend(said.map(|(key, value)| (key.to_owned(), value)));
        described
    }
}

/// Standardisation of a column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scaled {
    Yes,
    No,
}

impl NumberFit {
    /// `None` if all cells are empty.
    fn of(numbers: &[f64], features: &Features, scaled: Scaled) -> Option<Self> {
        let mut known: Vec<f64> = numbers.iter().copied().filter(|n| !n.is_nan()).collect();
        let n_empty = numbers.len() - known.len();
        let fill = match features.missing {
            None => None,
            Some(Missing::Constant(value)) => Some(value),
            Some(_) if known.is_empty() => return None,
            Some(Missing::Mean) => Some(known.iter().sum::<f64>() / known.len() as f64),
            Some(Missing::Median) => Some(median(&mut known)),
            Some(Missing::MostFrequent) => Some(most_frequent(&mut known)),
        };
        let filled = numbers.iter().map(|n| if n.is_nan() { fill.unwrap_or(*n) } else { *n });
        let scale = if scaled == Scaled::Yes { scale(filled) } else { (0.0, 1.0) };
        let indicator = features.missing_indicator && n_empty > 0;
        Some(Self { scale, fill, n_empty, indicator })
    }

    fn scaled(&self, numbers: &[f64]) -> Vec<f32> {
        let (mean, deviation) = self.scale;
        let fill = self.fill.unwrap_or(mean);
        let one = |number: &f64| {
            let number = if number.is_nan() { fill } else { *number };
            ((number - mean) / deviation) as f32
        };
        numbers.iter().map(one).collect()
    }
}

impl DateFit {
    fn of(column: &Column, form: &DateForm, features: &Features) -> Result<Self, String> {
        let parts = features.date_features.clone();
        let cyclic = features.cyclic_dates;
        let mut fit = Self { parts, cyclic, numbers: Vec::new(), form: form.clone() };
        // A date's features are filled in with their means, whatever is asked for numbers.
        let means =
            Features { missing: features.missing.map(|_| Missing::Mean), ..features.clone() };
        let widths = fit.parts.iter().map(|part| (part.width(cyclic), part.is_cyclic(cyclic)));
        let is_round: Vec<bool> =
            widths.flat_map(|(width, is_cyclic)| std::iter::repeat_n(is_cyclic, width)).collect();
        for (number, (numbers, is_round)) in fit.columns(column).iter().zip(is_round).enumerate() {
            let scaled = if is_round { Scaled::No } else { Scaled::Yes };
            // One of them says where the date is empty.
            let means = Features {
                missing_indicator: means.missing_indicator && number == 0,
                ..means.clone()
            };
            let found = NumberFit::of(numbers, &means, scaled);
            fit.numbers.push(found.ok_or_else(|| without_values(column))?);
        }
        Ok(fit)
    }

    /// The format of its cells, and each number that they become, for another program.
    fn described(&self) -> Value {
        let mut described = self.form.described();
        let parts = self.parts.iter().flat_map(|part| part.described(self.cyclic));
        let number = |(mut part, fit): (Value, &NumberFit)| {
            if let (Some(part), Value::Object(fit)) = (part.as_object_mut(), json!(fit)) {
                part.extend(fit);
            }
            part
        };
        described["numbers"] = parts.zip(&self.numbers).map(number).collect();
        described
    }

    /// The numbers of the dates, column by column; NaN where a cell is empty.
    fn columns(&self, column: &Column) -> Vec<Vec<f64>> {
        let width = self.parts.iter().map(|part| part.width(self.cyclic)).sum();
        let mut columns = vec![Vec::new(); width];
        let Cells::Dates(_, dates) = &column.cells else { return columns };
        let mut row = Vec::with_capacity(width);
        for date in dates {
            row.clear();
            match date {
                Some(date) => {
                    self.parts.iter().for_each(|part| part.append(*date, self.cyclic, &mut row));
                }
                None => row.resize(width, f64::NAN),
            }
            columns.iter_mut().zip(&row).for_each(|(column, number)| column.push(*number));
        }
        columns
    }

    /// "`sold`: date: year, month (sine and cosine)"
    fn line(&self, name: &str) -> String {
        let part = |part: &DateFeature| {
            let word = serde_json::to_value(part).unwrap_or_default();
            let round = if part.is_cyclic(self.cyclic) { " (sine, cosine)" } else { "" };
            format!("{}{round}", word.as_str().unwrap_or_default())
        };
        let parts: Vec<String> = self.parts.iter().map(part).collect();
        let n = self.numbers.first().map_or(0, |number| number.n_empty);
        let empty = if n > 0 { format!(", {n} empty = means") } else { String::new() };
        format!("`{name}`: date as {}{empty}", parts.join(", "))
    }
}

fn without_values(Column { name, .. }: &Column) -> String {
    format!("column `{name}` is empty in all rows to train on: leave it out with `data.ignore`")
}

/// "`city`: 12 categories (Bern, Rome, ...)"
fn shown_categories(name: &str, categories: &[String]) -> String {
    let word = |category: &String| match category.as_str() {
        "" => "empty".to_owned(),
        word => word.to_owned(),
    };
    let mut shown: Vec<String> = categories.iter().take(MAX_SHOWN).map(word).collect();
    if categories.len() > MAX_SHOWN {
        shown.push("...".to_owned());
    }
    let n = categories.len();
    let s = if categories.len() == 1 { "y" } else { "ies" };
    format!("`{name}`: {n} categor{s} ({})", shown.join(", "))
}

/// Distinct words: whole numbers in their order, or all as words; that of empty cells last.
fn sorted(words: &Words) -> Vec<String> {
    let mut found: Vec<String> = words.distinct().to_vec();
    let whole = |word: &String| word.parse::<i64>().ok();
    let are_whole = found.iter().all(|word| word.is_empty() || whole(word).is_some());
    found.sort_by_key(|word| {
        let number = if are_whole { whole(word) } else { None };
        (word.is_empty(), number, word.clone())
    });
    found
}

/// The place of each row's word among the categories, and those that are none.
fn found_places(words: &Words, categories: &[String]) -> (Vec<u32>, Option<UnknownCategory>) {
    let places: BTreeMap<&str, u32> =
        categories.iter().zip(0..).map(|(category, place)| (category.as_str(), place)).collect();
    let of_word: Vec<u32> = words
        .distinct()
        .iter()
        .map(|word| places.get(word.as_str()).copied().unwrap_or(UNKNOWN))
        .collect();
    let found: Vec<u32> = words.numbers().iter().map(|&word| of_word[word as usize]).collect();
    let count = found.iter().filter(|place| **place == UNKNOWN).count();
    let first = found.iter().position(|place| *place == UNKNOWN);
    let unknown = first.map(|row| UnknownCategory { count, row, word: words.word(row).to_owned() });
    (found, unknown)
}

/// 1 where a number is not there.
fn empty(numbers: &[f64]) -> Vec<f32> {
    numbers.iter().map(|number| f32::from(u8::from(number.is_nan()))).collect()
}

/// Columns of equal lengths as rows.
fn row_by_row<T: Copy>(columns: &[Vec<T>]) -> Vec<T> {
    let rows = columns.first().map_or(0, Vec::len);
    (0..rows).flat_map(|row| columns.iter().map(move |column| column[row])).collect()
}

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    let half = numbers.len() / 2;
    if numbers.len() % 2 == 1 {
        numbers[half]
    } else {
        f64::midpoint(numbers[half - 1], numbers[half])
    }
}

/// The smallest of several.
fn most_frequent(numbers: &mut [f64]) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    let runs = numbers.chunk_by(|a, b| a == b);
    // The first of the longest: `max_by_key` gives the last.
    runs.rev().max_by_key(|run| run.len()).map_or(0.0, |run| run[0])
}

/// Mean and population deviation; 1 for a constant column, which becomes 0.
pub(crate) fn scale(column: impl Iterator<Item = f64> + Clone) -> Scale {
    let n = column.clone().count() as f64;
    let mean = column.clone().sum::<f64>() / n;
    let deviation = (column.map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
    // Rounding leaves a constant column with a tiny variance.
    let constant = deviation <= mean.abs() * 1e-12;
    (mean, if constant { 1.0 } else { deviation })
}
