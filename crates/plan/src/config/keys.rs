//! The tree of all keys that an experiment may hold, and examples of what they take.

use std::collections::{BTreeMap, BTreeSet};

use figment::value::{Dict, Value};
use serde_json::Value as Json;

use crate::config::kind::{self, FamilySpec, Spec, example};
use crate::config::schema::DECLARED;
use crate::config::spans::Path;
use crate::config::table::{OPTIONS, each_of, is_required, keys_of, schema_at};

/// Keys and values that may stand at a place of the file.
#[derive(Debug)]
pub(crate) enum KeyTree {
    /// A value.
    Leaf,
    /// A table with these keys.
    Table(BTreeMap<String, KeyTree>),
    /// A list of tables with these keys.
    List(Box<KeyTree>),
    /// A list of tables with the keys of the table that it stands in.
    Nested,
    /// A table with at least these keys; the others belong to kinds that this program does not
    /// know.
    Open(BTreeMap<String, KeyTree>),
    /// A table with any keys, each holding this.
    Each(Box<KeyTree>),
}

impl KeyTree {
    /// The keys that may stand below `key`; `None` for lists, values and keys that are not known.
    pub(crate) fn child(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Table(keys) | Self::Open(keys) => keys.get(key),
            Self::Each(inner) => Some(inner),
            Self::List(_) | Self::Nested | Self::Leaf => None,
        }
    }

    /// True if a list of tables may stand here.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self, Self::List(_) | Self::Nested)
    }
}

/// The tree of all keys, with examples, and the reference page.
#[derive(Debug)]
pub(crate) struct Page {
    /// Every key with its meaning and default, as TOML.
    pub(crate) text: String,
    /// The tree of all keys.
    known: KeyTree,
    /// For each table that chooses a kind, the keys that all its kinds share.
    shared: BTreeMap<&'static str, BTreeSet<String>>,
    families: Vec<FamilySpec>,
}

impl Page {
    /// The keys of an experiment whose tables choose among `families`.
    pub(crate) fn new(families: &[FamilySpec]) -> Self {
        let text = kind::page(&DECLARED, families);
        let known = known(&DECLARED, "", families);
        let shared = kind::TABLES.map(|table| (table, shared_keys(table))).into();
        Self { text, known, shared, families: families.to_vec() }
    }

    /// The keys of the whole file.
    pub(crate) fn known(&self) -> &KeyTree {
        &self.known
    }

    /// Keys of `table` that all its kinds share.
    pub(crate) fn shared(&self, table: &str) -> Option<&BTreeSet<String>> {
        self.shared.get(table)
    }

    /// The kind that alone takes the list `table.key`; `None` if this is no list of one kind.
    pub(crate) fn owner_of_list(&self, table: &str, key: &str) -> Option<&'static str> {
        let mut owned = self.families.iter().flat_map(FamilySpec::owned_lists);
        owned.find(|list| list.table == table && list.key == key).map(|list| list.owner)
    }

    /// The kind called `name` of the list whose entry `path` leads into.
    pub(crate) fn kind_in_list(&self, path: &[String], name: &str) -> Option<&Spec> {
        self.families.iter().find(|family| family.entry(path).is_some())?.kind(name)
    }

    /// A value that the key at `path` takes.
    pub(crate) fn example(&self, path: &[String]) -> Option<Value> {
        if let Some(value) = schema_at(&DECLARED, path).filter(|schema| !is_entry(schema)) {
            return Some(stand_in(value));
        }
        let entry =
            |family: &FamilySpec| Some((family.kinds.first()?.clone(), family.entry(path)?));
        if let Some((kind, length)) = self.families.iter().find_map(entry) {
            let name = Value::from(kind.name);
            return match &path[length..] {
                [] => {
                    let needed = kind.keys.iter().filter(|key| key.required);
                    let needed = needed.map(|key| (key.name.clone(), given(&key.example)));
                    Some(
                        needed
                            .chain([("name".to_owned(), name)])
                            .collect::<BTreeMap<_, _>>()
                            .into(),
                    )
                }
                [key, ..] if key == "name" => Some(name),
                [key, rest @ ..] => descend(given(self.option(path, key)?), rest),
            };
        }
        let (table, rest) = path.split_first()?;
        let (key, rest) = rest.split_first()?;
        descend(given(self.option(std::slice::from_ref(table), key)?), rest)
    }

    /// An example of the option `key` of a kind that the table or entry at `path` chooses.
    fn option(&self, path: &[String], key: &str) -> Option<&Json> {
        let is_meant = |family: &&FamilySpec| match path {
            [table] => family.table == *table,
            _ => family.entry(path).is_some(),
        };
        let family = self.families.iter().find(is_meant)?;
        family.kinds.iter().find_map(|kind| kind.key(key)).map(|key| &key.example)
    }

    /// Dotted names of all keys that hold a value, lists of tables by the keys of their tables.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut found = Vec::new();
        walk(&self.known, "", &mut found);
        found
    }
}

fn given(value: &Json) -> Value {
    Value::serialize(value).unwrap_or_else(|_| Value::from(""))
}

/// The value at `path` inside `value`; each element of a list stands for the first.
fn descend(value: Value, path: &[String]) -> Option<Value> {
    path.iter().try_fold(value, |value, key| match value {
        Value::Dict(_, mut dict) => dict.remove(key),
        Value::Array(_, items) => items.first().cloned(),
        _ => None,
    })
}

/// True if this is the schema of a list's entry, which chooses a kind.
fn is_entry(schema: &Json) -> bool {
    schema.get(kind::ENTRY).is_some()
}

/// The keys of `table` that all its kinds share.
fn shared_keys(table: &str) -> BTreeSet<String> {
    let keys = keys_of(&DECLARED["properties"][table]).into_iter().flatten();
    keys.map(|(key, _)| key.clone()).filter(|key| key != OPTIONS).collect()
}

/// The keys that this schema allows at the dotted name `name`.
fn known(schema: &Json, name: &str, families: &[FamilySpec]) -> KeyTree {
    if is_entry(&schema["items"]) {
        let family = families.iter().find(|family| family.lists.contains(&name));
        return KeyTree::List(Box::new(entry(family)));
    }
    if let Some(items) = schema.get("items").filter(|items| keys_of(items).is_some()) {
        return KeyTree::List(Box::new(known(items, name, families)));
    }
    if let Some(inner) = each_of(schema) {
        return KeyTree::Each(Box::new(known(inner, name, families)));
    }
    let Some(keys) = keys_of(schema) else { return KeyTree::Leaf };
    let inside = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    let own = keys.iter().filter(|(key, _)| *key != OPTIONS);
    let mut all: BTreeMap<String, KeyTree> =
        own.map(|(key, schema)| (key.clone(), known(schema, &inside(key), families))).collect();
    if !keys.contains_key(OPTIONS) {
        return KeyTree::Table(all);
    }
    let Some(family) = families.iter().find(|family| family.table == name) else {
        return KeyTree::Open(all);
    };
    for key in family.kinds.iter().flat_map(|kind| &kind.keys) {
        // A table whose keys are the user's own holds anything.
        let inside = || match each_of(&key.schema) {
            Some(_) => KeyTree::Leaf,
            None => of_example(&key.example),
        };
        all.entry(key.name.clone()).or_insert_with(inside);
    }
    KeyTree::Table(all)
}

/// The keys that an option allows of which this value is an example.
fn of_example(value: &Json) -> KeyTree {
    let keys = |table: &serde_json::Map<String, Json>| {
        KeyTree::Table(table.iter().map(|(key, value)| (key.clone(), of_example(value))).collect())
    };
    match value {
        Json::Object(table) => keys(table),
        Json::Array(items) if items.iter().any(Json::is_object) => {
            let items = items.iter().filter_map(Json::as_object).flatten();
            let all = items.map(|(key, value)| (key.clone(), value.clone())).collect();
            KeyTree::List(Box::new(keys(&all)))
        }
        _ => KeyTree::Leaf,
    }
}

/// The keys that an entry of a list of the family allows; without a family, any.
fn entry(family: Option<&FamilySpec>) -> KeyTree {
    let mut keys = BTreeMap::from([("name".to_owned(), KeyTree::Leaf)]);
    let Some(family) = family else { return KeyTree::Open(keys) };
    if family.entry_key.is_some() {
        keys.insert("key".to_owned(), KeyTree::Leaf);
    }
    for key in family.kinds.iter().flat_map(|kind| &kind.keys) {
        let known = if key.is_list() { KeyTree::Nested } else { KeyTree::Leaf };
        keys.insert(key.name.clone(), known);
    }
    KeyTree::Table(keys)
}

fn walk(known: &KeyTree, prefix: &str, found: &mut Vec<String>) {
    let (KeyTree::Table(keys) | KeyTree::Open(keys)) = known else {
        found.push(prefix.to_owned());
        return;
    };
    for (key, inner) in keys {
        let dotted = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match inner {
            KeyTree::List(element) => walk(element, &dotted, found),
            _ => walk(inner, &dotted, found),
        }
    }
}

/// `data.transforms.train[1].size` for the user; a key that needs quotes has them.
pub fn dotted(path: &[String]) -> String {
    path.iter().fold(String::new(), |name, key| match key.parse::<usize>() {
        Ok(index) if !name.is_empty() => format!("{name}[{index}]"),
        _ if key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') => {
            if name.is_empty() { key.clone() } else { format!("{name}.{key}") }
        }
        _ => format!("{name}.\"{key}\""),
    })
}

/// `path` and one key more.
pub(crate) fn join(path: &[String], key: &str) -> Path {
    path.iter().cloned().chain([key.to_owned()]).collect()
}

/// True if a table must have this key.
pub(crate) fn needs(table: &Json, key: &str, schema: &Json) -> bool {
    let required = table["required"].as_array().into_iter().flatten();
    is_required(schema) || required.into_iter().any(|required| required == key)
}

/// A value that a key with this schema takes; of a table only what it has to have.
pub(crate) fn stand_in(schema: &Json) -> Value {
    if schema.get("default").is_none()
        && schema.get("examples").is_none()
        && let Some(keys) = keys_of(schema)
    {
        let needed = keys.iter().filter(|(key, inner)| needs(schema, key, inner));
        return Value::from(
            needed.map(|(key, inner)| (key.clone(), stand_in(inner))).collect::<Dict>(),
        );
    }
    let example = example(schema, schema.get("default"));
    Value::serialize(&example).unwrap_or_else(|_| Value::from(""))
}

/// The value as JSON.
pub(crate) fn json(value: &Value) -> Json {
    serde_json::to_value(value).unwrap_or_default()
}

/// Parses a dotted name, as [`dotted`] writes it.
pub(crate) fn path_of(dotted: &str) -> Path {
    let mut path = Path::new();
    let mut quoted = false;
    let mut key = String::new();
    for c in dotted.chars() {
        match c {
            '"' => quoted = !quoted,
            '.' | '[' if !quoted => path.push(std::mem::take(&mut key)),
            ']' if !quoted => {}
            c => key.push(c),
        }
    }
    path.push(key);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dotted_names_lead_back_to_their_path() {
        for name in ["train.epochs", "data.transforms.train[1].size", "expect.\"val/loss\".at_most"]
        {
            assert_eq!(dotted(&path_of(name)), name);
        }
    }
}
