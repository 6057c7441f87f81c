//! `[data.features]`: what the columns of a table are, and what stands in empty cells.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::config::kind::OptionConflict;
use crate::sources::tables::column_names::ColumnNames;
use crate::sources::tables::dates::DateFeature;

/// How the columns of a table become numbers; without a word all of them are numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Features {
    /// categorical columns, encoded one-hot by the categories of the training rows. An empty cell
    /// is a category of its own. "auto": every column with a cell that is not a number.
    pub categorical: ColumnNames,
    /// date columns: dates and optionally times, in the format of `data.date_format` or the one that
    /// all rows fit.
    pub dates: ColumnNames,
    /// features taken from each date.
    pub date_features: Vec<DateFeature>,
    /// encode periodic features of a date as sine and cosine; if false, as standardised numbers.
    pub cyclic_dates: bool,
    /// value for empty numeric cells: "mean", "median" or `"most_frequent"` of the column's
    /// training rows, or a number; features of empty dates become their means. Without it, empty
    /// cells are refused.
    pub missing: Option<Missing>,
    /// add an input for each column with empty cells in the training rows: 1 where the cell is
    /// empty.
    pub missing_indicator: bool,
    /// categories that do not occur in the training rows: "ignore" encodes them as all zeros,
    /// "error" refuses them.
    pub handle_unknown: HandleUnknown,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            categorical: ColumnNames::default(),
            dates: ColumnNames::default(),
            date_features: vec![DateFeature::Year, DateFeature::Month, DateFeature::DayOfWeek],
            cyclic_dates: true,
            missing: None,
            missing_indicator: false,
            handle_unknown: HandleUnknown::Ignore,
        }
    }
}

/// Replacement of an empty cell of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Missing {
    /// The mean of the column.
    Mean,
    Median,
    /// The most frequent number, the smallest one of several.
    MostFrequent,
    /// This number.
    Constant(f64),
}

/// What becomes of a category that no training row has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HandleUnknown {
    /// All numbers of its column are 0.
    Ignore,
    /// It is refused.
    Error,
}

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    Number,
    Category,
    Date,
}

/// `data.missing_values`: words that count as empty cells, in features and targets alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingValues(Vec<String>);

/// Rules for reading the cells of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellRules<'a> {
    pub(crate) features: &'a Features,
    pub(crate) missing: &'a MissingValues,
}

/// Stands for [`NA_VALUES`] in a list of words.
const PANDAS: &str = "pandas";
/// Cells that pandas takes for empty (`read_csv`, `na_values`), beside the empty one.
const NA_VALUES: [&str; 18] = [
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>",
    "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
];

impl Default for MissingValues {
    /// The words of pandas.
    fn default() -> Self {
        Self(vec![PANDAS.to_owned()])
    }
}

impl MissingValues {
    /// All words that count as an empty cell.
    pub(super) fn words(&self) -> Vec<String> {
        let words = |word: &String| match word.as_str() {
            PANDAS => NA_VALUES.map(str::to_owned).to_vec(),
            word => vec![word.to_owned()],
        };
        std::iter::once(String::new()).chain(self.0.iter().flat_map(words)).collect()
    }

    /// True if a cell counts as empty.
    pub fn holds(&self, cell: &str) -> bool {
        let is_it = |word: &String| match word.as_str() {
            PANDAS => NA_VALUES.contains(&cell),
            word if word == cell => true,
            // -999 is also written as -999.0.
            word if cell.ends_with(|c: char| c.is_ascii_digit() || c == '.') => {
                let number = cell.parse::<f64>();
                number.is_ok() && number == word.parse::<f64>()
            }
            _ => false,
        };
        cell.is_empty() || self.0.iter().any(is_it)
    }
}

impl Serialize for MissingValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0[..] {
            [word] => serializer.serialize_str(word),
            words => words.serialize(serializer),
        }
    }
}

struct MissingValuesVisitor;

impl<'de> Visitor<'de> for MissingValuesVisitor {
    type Value = MissingValues;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`\"pandas\"`, or a list of words and numbers")
    }

    fn visit_str<E>(self, word: &str) -> Result<MissingValues, E> {
        Ok(MissingValues(vec![word.to_owned()]))
    }

    fn visit_i64<E>(self, value: i64) -> Result<MissingValues, E> {
        Ok(MissingValues(vec![value.to_string()]))
    }

    fn visit_u64<E>(self, value: u64) -> Result<MissingValues, E> {
        Ok(MissingValues(vec![value.to_string()]))
    }

    fn visit_f64<E>(self, value: f64) -> Result<MissingValues, E> {
        Ok(MissingValues(vec![value.to_string()]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MissingValues, A::Error> {
        let mut words = Vec::new();
        while let Some(MissingValues(more)) = seq.next_element()? {
            words.extend(more);
        }
        Ok(MissingValues(words))
    }
}

impl<'de> Deserialize<'de> for MissingValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MissingValuesVisitor)
    }
}

impl JsonSchema for MissingValues {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "MissingValues".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": ["string", "number"] },
                { "type": "array", "items": { "type": ["string", "number"] } },
            ],
        })
    }
}

impl Features {
    /// All keys, for the reference page.
    pub(super) fn example() -> Self {
        let names = |name: &str| ColumnNames::List(vec![name.to_owned()]);
        Self {
            categorical: names("city"),
            dates: names("sold"),
            missing: Some(Missing::Mean),
            ..Self::default()
        }
    }

    /// True if every column of words is one of categories.
    pub(crate) fn infers(&self) -> bool {
        self.categorical.is_word("auto")
    }

    /// Columns of categories that are named.
    pub(crate) fn categories(&self) -> &[String] {
        if self.infers() { &[] } else { self.categorical.names() }
    }

    /// Declared type of the column `name`.
    pub(crate) fn kind(&self, name: &str) -> ColumnKind {
        let is_in = |names: &[String]| names.iter().any(|listed| listed == name);
        if is_in(self.dates.names()) {
            ColumnKind::Date
        } else if is_in(self.categories()) {
            ColumnKind::Category
        } else {
            ColumnKind::Number
        }
    }

    /// Every column that is declared.
    pub(crate) fn declared(&self) -> impl Iterator<Item = &String> {
        self.categories().iter().chain(self.dates.names())
    }

    /// The columns, by the keys that declare them.
    pub(crate) fn keyed(&self) -> Vec<(String, &String)> {
        let categories = if self.infers() {
            Vec::new()
        } else {
            self.categorical.keyed("data.features.categorical")
        };
        [categories, self.dates.keyed("data.features.dates")].concat()
    }

    /// Checks the keys together; `taken` columns are no features.
    pub fn check(&self, taken: &[&String]) -> Vec<OptionConflict> {
        let mut wrong = Vec::new();
        let mut say =
            |key, with, what: &str| wrong.push(OptionConflict { key, with, what: what.to_owned() });
        let dates = self.dates.names();
        for (key, names) in [("features.categorical", self.categories()), ("features.dates", dates)]
        {
            if let Some(name) = names.iter().find(|name| taken.contains(name)) {
                let what = format!("names `{name}`, which is a group or ignored");
                say(key, &["group", "ignore"], &what);
            }
        }
        if let Some(both) = self.categories().iter().find(|name| dates.contains(name)) {
            let what = format!("names `{both}`, as `dates` does");
            say("features.categorical", &["features.dates"], &what);
        }
        if self.date_features.is_empty() && !dates.is_empty() {
            say("features.date_features", &["features.dates"], "takes nothing from the dates");
        }
        if self.missing_indicator && self.missing.is_none() {
            say("features.missing_indicator", &["features.missing"], "needs `missing`");
        }
        if matches!(self.missing, Some(Missing::Constant(value)) if !(value as f32).is_finite()) {
            say("features.missing", &[], "must be finite in 32 bits");
        }
        wrong
    }
}

impl Missing {
    /// "mean"
    pub(crate) fn word(self) -> Option<&'static str> {
        match self {
            Self::Mean => Some("mean"),
            Self::Median => Some("median"),
            Self::MostFrequent => Some("most_frequent"),
            Self::Constant(_) => None,
        }
    }
}

impl Serialize for Missing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.word(), self) {
            (_, Self::Constant(value)) => serializer.serialize_f64(*value),
            (word, _) => serializer.serialize_str(word.unwrap_or_default()),
        }
    }
}

struct MissingVisitor;

impl Visitor<'_> for MissingVisitor {
    type Value = Missing;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`\"mean\"`, `\"median\"`, `\"most_frequent\"`, or a number")
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<Missing, E> {
        let all = [Missing::Mean, Missing::Median, Missing::MostFrequent];
        let found = all.into_iter().find(|missing| missing.word() == Some(word));
        found.ok_or_else(|| E::invalid_value(Unexpected::Str(word), &self))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Missing, E> {
        Ok(Missing::Constant(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Missing, E> {
        Ok(Missing::Constant(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Missing, E> {
        Ok(Missing::Constant(value as f64))
    }
}

impl<'de> Deserialize<'de> for Missing {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MissingVisitor)
    }
}

impl JsonSchema for Missing {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Missing".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "enum": ["mean", "median", "most_frequent"] }, { "type": "number" }],
        })
    }
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;

    #[test]
    fn what_stands_for_an_empty_cell_is_a_word_or_a_number() {
        for json in [r#""mean""#, r#""median""#, r#""most_frequent""#, "-1.5"] {
            let missing: Missing = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&missing).unwrap(), json);
        }
        assert_eq!(serde_json::from_str::<Missing>("0").unwrap(), Missing::Constant(0.0));
        assert_refused(
            serde_json::from_str::<Missing>(r#""mode""#),
            "invalid value: string \"mode\"",
        );
    }

    #[test]
    fn words_for_an_empty_cell_are_those_of_pandas_or_given() {
        let read = |json: &str| serde_json::from_str::<MissingValues>(json).unwrap();
        for json in [r#""pandas""#, r#"["pandas","?"]"#, "[]", r#""-999""#] {
            assert_eq!(serde_json::to_string(&read(json)).unwrap(), json);
        }
        let held = |json: &str, cells: [&str; 6]| cells.map(|cell| read(json).holds(cell));
        let cells = ["", "NA", "n/a", "?", "-999.0", "0"];
        assert_eq!(MissingValues::default(), read(r#""pandas""#));
        assert_eq!(held(r#""pandas""#, cells), [true, true, true, false, false, false]);
        assert_eq!(held("[]", cells), [true, false, false, false, false, false]);
        assert_eq!(held(r#"["?", -999]"#, cells), [true, false, false, true, true, false]);
        assert_eq!(held(r#"["pandas", "?"]"#, cells), [true, true, true, true, false, false]);
        assert_refused(
            serde_json::from_str::<MissingValues>("true"),
            "expected `\"pandas\"`, or a list",
        );
    }

    #[test]
    fn keys_that_do_not_go_together_are_named() {
        let check = |features: &Features, expected: &[&str]| {
            let target = "price".to_owned();
            let wrong = features.check(&[&target]);
            assert_eq!(wrong.iter().map(|wrong| wrong.key).collect::<Vec<_>>(), expected);
        };
        check(&Features::default(), &[]);
        check(&Features::example(), &[]);
        check(
            &Features { categorical: "price".into(), dates: "price".into(), ..Features::default() },
            &["features.categorical", "features.dates", "features.categorical"],
        );
        check(
            &Features {
                date_features: Vec::new(),
                dates: "sold".into(),
                missing_indicator: true,
                ..Features::default()
            },
            &["features.date_features", "features.missing_indicator"],
        );
        let constant = Some(Missing::Constant(f64::NAN));
        check(&Features { missing: constant, ..Features::default() }, &["features.missing"]);
    }
}
