//! Lists of an experiment whose entries each choose a kind: `[[data.transforms.train]]`,
//! `[[model.layers]]`, `logging.sinks`.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::config::kind::{Choice, FamilySpec, Key, Options};

/// Lists of an experiment whose entries each choose a kind.
pub const LISTS: [&str; 4] =
    ["data.transforms.train", "data.transforms.val", "model.layers", SINKS];

/// The list whose entries choose sinks. An entry may be a name alone: `"csv"` is
/// `{ name = "csv" }`.
pub const SINKS: &str = "logging.sinks";

/// An entry of a list: a table of a name, and the options of the kind that it chooses.
///
/// An option of the type `Vec<Entry>` is again a list of kinds of the same family.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Name of the kind.
    pub name: String,
    /// Name of the entry itself, where the entries of a list have names.
    pub key: Option<String>,
    /// Options of the kind.
    pub options: Options,
}

impl Entry {
    /// The entry of the kind called `name`, without options.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), key: None, options: Options::new() }
    }

    /// The chosen kind with its options.
    pub fn choice(&self) -> Choice {
        Choice { name: self.name.clone(), options: self.options.clone() }
    }
}

impl Serialize for Entry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = serializer.serialize_map(None)?;
        table.serialize_entry("name", &self.name)?;
        if let Some(key) = &self.key {
            table.serialize_entry("key", key)?;
        }
        // TOML wants a table's own keys before the tables in it.
        let is_list = |value: &Value| value.get(0).is_some_and(Value::is_object);
        let own = self.options.iter().filter(|(_, value)| !is_list(value));
        for (key, value) in own.chain(self.options.iter().filter(|(_, value)| is_list(value))) {
            table.serialize_entry(key, value)?;
        }
        table.end()
    }
}

/// Writes entries without options as their names alone.
pub(crate) fn names_or_tables<S: Serializer>(
    entries: &[Entry],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    /// An entry as such a list has it.
    #[derive(Serialize)]
    #[serde(untagged)]
    enum NameOrTable<'a> {
        Name(&'a str),
        Table(&'a Entry),
    }
    serializer.collect_seq(entries.iter().map(|entry| {
        let is_name = entry.key.is_none() && entry.options.is_empty();
        if is_name { NameOrTable::Name(&entry.name) } else { NameOrTable::Table(entry) }
    }))
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Entry, E> {
        Ok(Entry::named(name))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut table: A) -> Result<Entry, A::Error> {
        let (mut name, mut key, mut options) = (None, None, Options::new());
        while let Some(word) = table.next_key::<String>()? {
            match word.as_str() {
                "name" => name = Some(table.next_value()?),
                "key" => key = table.next_value()?,
                _ => drop(options.insert(word, table.next_value()?)),
            }
        }
        options.retain(|_, value| !value.is_null());
        Ok(Entry { name: name.ok_or_else(|| A::Error::missing_field("name"))?, key, options })
    }
}

/// The mark of an entry's schema.
pub(crate) const ENTRY: &str = "x-entry";

impl JsonSchema for Entry {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Entry".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "required": ["name"], "x-entry": true })
    }
}

impl Key {
    /// True if its value is again a list of kinds of the family.
    pub fn is_list(&self) -> bool {
        self.schema["items"].get(ENTRY).and_then(Value::as_bool) == Some(true)
    }
}

/// A list of `[table]` that is an option of the kind `owner` only.
pub(crate) struct OwnedList {
    pub(crate) table: &'static str,
    pub(crate) key: &'static str,
    pub(crate) owner: &'static str,
}

impl FamilySpec {
    /// Parts of the path of an entry: `path` may lead into the entry, or further; `None` if it
    /// leads to none of the lists of this family.
    pub(crate) fn entry(&self, path: &[String]) -> Option<usize> {
        let is_index = |at: usize| path.get(at).is_some_and(|part| part.parse::<usize>().is_ok());
        let begins = |list: &&str| list.split('.').eq(path.iter().take(list.split('.').count()));
        let list = self.lists.iter().copied().find(begins)?;
        let mut length = list.split('.').count() + 1;
        if !is_index(length - 1) {
            return None;
        }
        while path.get(length).is_some_and(|key| self.has_list(key)) && is_index(length + 1) {
            length += 2;
        }
        Some(length)
    }

    /// Lists that belong to one kind only.
    pub(crate) fn owned_lists(&self) -> impl Iterator<Item = OwnedList> {
        self.lists.iter().filter_map(|list| {
            let (table, key) = list.split_once('.')?;
            Some(OwnedList { table, key, owner: self.lists_of? })
        })
    }

    /// True if the option `key` of one of the kinds is a list of kinds.
    fn has_list(&self, key: &str) -> bool {
        self.kinds.iter().filter_map(|kind| kind.key(key)).any(Key::is_list)
    }
}
