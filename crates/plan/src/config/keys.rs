//! `defaults.toml` -> the built-in layer, and the tree of all keys that an experiment may hold.
//!
//! Keys without a default stand there in comment lines (`# momentum = 0.9`); with the comment sign
//! taken away they are examples of what the key takes.

use std::collections::{BTreeMap, BTreeSet};

use figment::value::{Dict, Value};

use crate::config::kind::{self, FamilySpec, Spec};
use crate::config::spans::{self, Path};

/// The reference page of all keys, and the weakest layer.
pub const DEFAULTS: &str = include_str!("defaults.toml");

/// What may stand at a place of the file.
#[derive(Debug)]
pub(crate) enum Known {
    /// A value.
    Leaf,
    /// A table with these keys.
    Table(BTreeMap<String, Known>),
    /// A list of tables with these keys.
    List(Box<Known>),
    /// A list of tables with the keys of the table that it stands in.
    Nested,
    /// A table with at least these keys; the others belong to kinds that this program does not
    /// know.
    Open(BTreeMap<String, Known>),
    /// A table with any keys, each holding this.
    Each(Box<Known>),
    /// A table of whatever a user's model takes.
    Anything,
}

/// The reference page with the keys of all kinds, read: what may stand where, with examples.
#[derive(Debug)]
pub(crate) struct Page {
    /// The page itself, TOML.
    pub(crate) text: String,
    /// Every key, with an example value: the defaults and the commented lines together.
    examples: Dict,
    /// The tree of all keys.
    known: Known,
    /// For each table that chooses a kind, the keys that all its kinds share.
    shared: BTreeMap<&'static str, BTreeSet<String>>,
    /// Families of which entries of lists choose kinds.
    lists: Vec<FamilySpec>,
}

impl Page {
    /// The page with the keys of `families` put in.
    pub(crate) fn new(families: &[FamilySpec]) -> Self {
        let text = kind::page(DEFAULTS, families);
        let mut examples = spans::document(&text).dict;
        merge(&mut examples, spans::document(&commented_keys(&text)).dict);
        let known = tree(&examples, families);
        let shared = shared_keys();
        let lists = families.iter().filter(|family| !family.lists.is_empty()).cloned().collect();
        Self { text, examples, known, shared, lists }
    }

    /// The keys of the whole file.
    pub(crate) fn known(&self) -> &Known {
        &self.known
    }

    /// Keys of `table` that all its kinds share.
    pub(crate) fn shared(&self, table: &str) -> Option<&BTreeSet<String>> {
        self.shared.get(table)
    }

    /// The kind that alone takes the list `table.key`; `None` if this is no list of one kind.
    pub(crate) fn owner_of_list(&self, table: &str, key: &str) -> Option<&'static str> {
        let mut owned = self.lists.iter().flat_map(FamilySpec::owned_lists);
        owned.find(|list| list.table == table && list.key == key).map(|list| list.owner)
    }

    /// The kind called `name` of the list whose entry `path` leads into.
    pub(crate) fn kind_in_list(&self, path: &[String], name: &str) -> Option<&Spec> {
        self.lists.iter().find(|family| family.entry(path).is_some())?.kind(name)
    }

    /// A value that the key at `path` takes; a place in a list answers with the list's first
    /// element.
    pub(crate) fn example(&self, path: &[String]) -> Option<Value> {
        let path = self.in_first_list(path).unwrap_or_else(|| path.to_vec());
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.examples.get(first)?.clone(), |value, key| match value {
            Value::Dict(_, mut dict) => dict.remove(key),
            Value::Array(_, items) => {
                let index: usize = key.parse().ok()?;
                items.get(index).or(items.first()).cloned()
            }
            _ => None,
        })
    }

    /// The same place of an entry in the list in which the page explains its family; entries in
    /// entries take what entries take.
    fn in_first_list(&self, path: &[String]) -> Option<Path> {
        let entry = |family: &FamilySpec| Some((*family.lists.first()?, family.entry(path)?));
        let (list, length) = self.lists.iter().find_map(entry)?;
        Some([&path_of(list), &path[length - 1..]].concat())
    }

    /// Dotted names of all keys that hold a value, lists of tables by the keys of their tables.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut found = Vec::new();
        walk(&self.known, "", &mut found);
        found
    }
}

/// For each table that chooses a kind, its keys on the page without kinds, and lists of kinds in
/// it.
fn shared_keys() -> BTreeMap<&'static str, BTreeSet<String>> {
    let text = kind::page(DEFAULTS, &[]);
    let mut page = spans::document(&text).dict;
    merge(&mut page, spans::document(&commented_keys(&text)).dict);
    let mut of_table = |table: &'static str| {
        let keys = page.remove(table).and_then(Value::into_dict).unwrap_or_default();
        let in_table = |list: &str| {
            let (parent, list) = list.split_once('.')?;
            (parent == table).then(|| list.split('.').next().unwrap_or(list).to_owned())
        };
        keys.into_keys().chain(kind::LISTS.into_iter().filter_map(in_table)).collect()
    };
    kind::TABLES.map(|table| (table, of_table(table))).into()
}

/// The tree of all keys of a page.
fn tree(examples: &Dict, families: &[FamilySpec]) -> Known {
    let mut root = tables(examples);
    if let Known::Table(keys) = &mut root {
        if let Some(Known::Table(expect)) = keys.remove("expect") {
            let inner = expect.into_values().next().unwrap_or(Known::Anything);
            keys.insert("expect".to_owned(), Known::Each(Box::new(inner)));
        }
        for list in kind::LISTS {
            let family = families.iter().find(|family| family.lists.contains(&list));
            put(keys, list, Known::List(Box::new(entry(family))));
        }
        for table in kind::TABLES {
            if families.iter().any(|family| family.table == table) {
                continue;
            }
            if let Some(Known::Table(shared)) = keys.remove(table) {
                keys.insert(table.to_owned(), Known::Open(shared));
            }
        }
    }
    root
}

/// What an entry of a list of the family may hold; without a family, anything.
fn entry(family: Option<&FamilySpec>) -> Known {
    let mut keys = BTreeMap::from([("name".to_owned(), Known::Leaf)]);
    let Some(family) = family else { return Known::Open(keys) };
    if family.entry_key.is_some() {
        keys.insert("key".to_owned(), Known::Leaf);
    }
    for key in family.kinds.iter().flat_map(|kind| &kind.keys) {
        let known = if key.is_list() { Known::Nested } else { Known::Leaf };
        keys.insert(key.name.clone(), known);
    }
    Known::Table(keys)
}

/// Puts `known` at the dotted name `place`, of which all but the last part are tables.
fn put(keys: &mut BTreeMap<String, Known>, place: &str, known: Known) {
    match place.split_once('.') {
        None => drop(keys.insert(place.to_owned(), known)),
        Some((table, rest)) => {
            if let Some(Known::Table(keys)) = keys.get_mut(table) {
                put(keys, rest, known);
            }
        }
    }
}

fn walk(known: &Known, prefix: &str, found: &mut Vec<String>) {
    let (Known::Table(keys) | Known::Open(keys)) = known else {
        found.push(prefix.to_owned());
        return;
    };
    for (key, inner) in keys {
        let dotted = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match inner {
            Known::List(element) => walk(element, &dotted, found),
            _ => walk(inner, &dotted, found),
        }
    }
}

/// Only the table headers and the commented keys, as TOML.
pub fn commented_keys(page: &str) -> String {
    page.lines()
        .filter_map(|line| match line.strip_prefix("# ") {
            Some(rest) => is_key(rest).then_some(rest),
            None => line.starts_with('[').then_some(line),
        })
        .fold(String::new(), |text, line| text + line + "\n")
}

/// Whether a comment is a key or a header in disguise, not a sentence.
fn is_key(comment: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_\"/".contains(c);
    match comment.split_once(" = ") {
        Some((key, _)) => key.chars().all(plain),
        None => comment.starts_with("[["),
    }
}

fn merge(into: &mut Dict, from: Dict) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Dict(_, old)), Value::Dict(_, new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

fn tables(dict: &Dict) -> Known {
    Known::Table(dict.iter().map(|(key, value)| (key.clone(), known(value))).collect())
}

fn known(value: &Value) -> Known {
    match value {
        Value::Dict(_, dict) => tables(dict),
        Value::Array(_, items) if items.iter().any(|item| item.as_dict().is_some()) => {
            let mut keys = Dict::new();
            items.iter().filter_map(|item| item.clone().into_dict()).for_each(|d| keys.extend(d));
            Known::List(Box::new(tables(&keys)))
        }
        _ => Known::Leaf,
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

/// The way back from [`dotted`].
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
    use crate::config::schema::Experiment;

    /// The whole page as one experiment, as JSON.
    fn everything() -> serde_json::Value {
        let mut examples = Page::new(&[]).examples;
        examples.remove("extends");
        serde_json::to_value(Value::from(examples)).unwrap()
    }

    #[test]
    fn every_key_of_the_schema_stands_on_the_page_and_no_other() {
        // `deny_unknown_fields` refuses keys that the schema lacks; a key that the page lacks is
        // null.
        let experiment: Experiment = serde_json::from_value(everything()).unwrap();
        let mut open = vec![(String::new(), serde_json::to_value(&experiment).unwrap())];
        while let Some((name, value)) = open.pop() {
            assert!(!value.is_null(), "`{name}` is not on the page");
            if let serde_json::Value::Object(keys) = value {
                open.extend(keys.into_iter().map(|(key, value)| (format!("{name}.{key}"), value)));
            }
        }
    }

    #[test]
    fn every_line_with_a_key_follows_a_line_that_explains() {
        let mut explained = false;
        let mut inside_example = false;
        for line in Page::new(&[]).text.lines() {
            let comment = line.strip_prefix("# ");
            let is_key_line = comment.map_or_else(|| line.contains(" = "), is_key);
            if is_key_line {
                let pair = ["train = []", "val = []"].contains(&line);
                assert!(explained || inside_example || pair, "{line}");
                inside_example = comment.is_some();
                explained = false;
            } else {
                inside_example &= comment.is_some();
                explained = comment.is_some() || (explained && line.starts_with('['));
                inside_example |= comment.is_some_and(|text| text.starts_with("[["));
            }
        }
    }

    #[test]
    fn dotted_names_lead_back_to_their_path() {
        for name in ["train.epochs", "data.transforms.train[1].size", "expect.\"val/loss\".at_most"]
        {
            assert_eq!(dotted(&path_of(name)), name);
        }
    }
}
