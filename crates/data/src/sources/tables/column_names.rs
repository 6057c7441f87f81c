//! Names of columns in an experiment: a word, or a list of them.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::config::kind::OptionConflict;

/// One name, or a list of names; written back as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ColumnNames {
    /// A single word.
    One(String),
    List(Vec<String>),
}

impl ColumnNames {
    pub fn names(&self) -> &[String] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::List(names) => names,
        }
    }

    /// True if it is exactly this one word.
    pub(crate) fn is_word(&self, word: &str) -> bool {
        matches!(self, Self::One(name) if name == word)
    }

    /// Checks the columns to predict against `others`, which cannot be among them.
    pub(crate) fn wrong(
        &self,
        others: &[&String],
        with: &'static [&'static str],
    ) -> Vec<OptionConflict> {
        let names = self.names();
        let is_twice = |at: &usize| names[..*at].contains(&names[*at]);
        let what = match names.iter().find(|name| others.contains(name)) {
            _ if names.is_empty() => "names no column".to_owned(),
            Some(name) => format!("names `{name}`, which has another use"),
            None => match (0..names.len()).find(is_twice) {
                Some(at) => format!("names `{}` twice", names[at]),
                None => return Vec::new(),
            },
        };
        vec![OptionConflict { key: "target", with, what }]
    }

    /// The names, each with its position below `key`: `data.target[1]`.
    pub(crate) fn keyed(&self, key: &str) -> Vec<(String, &String)> {
        match self {
            Self::One(name) => vec![(key.to_owned(), name)],
            Self::List(names) => keyed(key, names),
        }
    }

    /// "`a`, `b`"
    pub(crate) fn words(&self) -> String {
        self.names().iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    }
}

/// Names of a list with their places in it.
pub(crate) fn keyed<'a>(key: &str, names: &'a [String]) -> Vec<(String, &'a String)> {
    names.iter().enumerate().map(|(at, name)| (format!("{key}[{at}]"), name)).collect()
}

impl Default for ColumnNames {
    fn default() -> Self {
        Self::List(Vec::new())
    }
}

impl From<&str> for ColumnNames {
    fn from(name: &str) -> Self {
        Self::One(name.to_owned())
    }
}

struct NamesVisitor;

impl<'de> Visitor<'de> for NamesVisitor {
    type Value = ColumnNames;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a column, or a list of names")
    }

    fn visit_str<E>(self, name: &str) -> Result<ColumnNames, E> {
        Ok(ColumnNames::from(name))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<ColumnNames, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(seq)).map(ColumnNames::List)
    }
}

impl<'de> Deserialize<'de> for ColumnNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NamesVisitor)
    }
}

impl JsonSchema for ColumnNames {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ColumnNames".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string" },
                { "type": "array", "items": { "type": "string" } },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;

    #[test]
    fn names_are_written_as_they_are_read() {
        for json in [r#""price""#, r#"["price"]"#, r#"["a","b"]"#, "[]"] {
            let names: ColumnNames = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&names).unwrap(), json);
        }
        assert_refused(
            serde_json::from_str::<ColumnNames>("3"),
            "expected the name of a column, or a list of names",
        );
        assert_refused(serde_json::from_str::<ColumnNames>("[3]"), "expected a string");
    }
}
