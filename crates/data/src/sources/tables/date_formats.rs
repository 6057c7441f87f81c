//! `data.date_format`, and the formats of columns of dates by all of their cells.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::config::kind::OptionConflict;
use crate::error::Error;
use crate::sources::dates::{DateForm, FORMAT_KEY, FormInference, check_format};
use crate::sources::tables::column::{BadCell, wrong_date};
use crate::sources::tables::features::{CellRules, Features};
use crate::sources::tables::table::cell;

/// `data.date_format`: the format of all columns of dates, or that of each; written back as it was
/// read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum DateFormats {
    /// One format for all columns.
    One(String),
    ByColumn(BTreeMap<String, String>),
}

impl DateFormats {
    /// The format of a column, if it is given.
    fn of(&self, column: &str) -> Option<&str> {
        match self {
            Self::One(format) => Some(format),
            Self::ByColumn(formats) => formats.get(column).map(String::as_str),
        }
    }

    /// Checks formats that may be given against the columns that `features` declares.
    pub fn check(formats: Option<&Self>, features: &Features) -> Option<OptionConflict> {
        let dates = features.dates.names();
        let wrong = |what| OptionConflict { key: "date_format", with: &["features"], what };
        match formats? {
            Self::One(format) => check_format(format).err().map(wrong),
            Self::ByColumn(formats) => formats.iter().find_map(|(name, format)| {
                if !dates.contains(name) {
                    let what = format!("names `{name}`, which `features.dates` does not");
                    return Some(wrong(what));
                }
                check_format(format).err().map(|what| wrong(format!("of `{name}` {what}")))
            }),
        }
    }
}

/// Inference of the format of each column of dates from its cells.
pub(crate) struct DateInferences<'a> {
    rules: CellRules<'a>,
    columns: BTreeMap<&'a str, (FormInference<'a>, PathBuf)>,
}

impl<'a> DateInferences<'a> {
    /// Inference for the columns that the features of `rules` declare, some of which may have a
    /// format already.
    pub(crate) fn new(rules: CellRules<'a>, formats: Option<&'a DateFormats>) -> Self {
        let inference = |name: &'a String| {
            let given = formats.and_then(|formats| formats.of(name));
            (name.as_str(), (FormInference::new(given), PathBuf::new()))
        };
        Self { rules, columns: rules.features.dates.names().iter().map(inference).collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Takes a cell of any column.
    pub(crate) fn see(
        &mut self,
        name: &str,
        cell: &str,
        path: &Path,
        line: u64,
    ) -> Result<(), BadCell> {
        let Some((inference, last)) = self.columns.get_mut(name) else { return Ok(()) };
        if self.rules.missing.holds(cell) {
            return Ok(());
        }
        if last != path {
            path.clone_into(last);
        }
        inference.see(cell, line).map_err(|wrong| wrong_date(name, wrong))
    }

    /// The format of each column.
    pub(crate) fn forms(self) -> Result<BTreeMap<String, DateForm>, Error> {
        // One format would be that of all.
        let has_several = self.columns.len() > 1;
        let form = |(name, (inference, path)): (&str, (FormInference<'_>, PathBuf))| {
            let key = if has_several {
                format!("{FORMAT_KEY}.{}", toml_key(name))
            } else {
                FORMAT_KEY.to_owned()
            };
            let form = inference.form(&key).map_err(|wrong| {
                let line = wrong.line;
                cell(&path, line, wrong_date(name, wrong))
            })?;
            Ok((name.to_owned(), form.unwrap_or_default()))
        };
        self.columns.into_iter().map(form).collect()
    }
}

/// A name as a key of TOML.
fn toml_key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    if !name.is_empty() && name.chars().all(is_bare) {
        name.to_owned()
    } else {
        format!("{name:?}")
    }
}

struct FormatsVisitor;

impl<'de> Visitor<'de> for FormatsVisitor {
    type Value = DateFormats;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a format of dates, or a table of columns and their formats")
    }

    fn visit_str<E>(self, format: &str) -> Result<DateFormats, E> {
        Ok(DateFormats::One(format.to_owned()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DateFormats, A::Error> {
        BTreeMap::deserialize(MapAccessDeserializer::new(map)).map(DateFormats::ByColumn)
    }
}

impl<'de> Deserialize<'de> for DateFormats {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FormatsVisitor)
    }
}

impl JsonSchema for DateFormats {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DateFormats".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string" },
                { "type": "object", "additionalProperties": { "type": "string" } },
            ],
        })
    }
}
