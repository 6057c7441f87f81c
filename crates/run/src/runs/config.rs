//! Values of `resolved.toml` by dotted keys, and the differences between runs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::{Table, Value};

use super::Error;
use crate::config::dotted;
use crate::files;
use crate::record::{NewerFormat, RESOLVED, newest_of};

/// The newest known schema of an experiment.
const SCHEMA: u32 = 1;

/// Reads the resolved experiment of the newest start of the run in `folder`.
pub fn config(folder: &Path) -> Result<Table, Error> {
    let path = newest_of(folder, RESOLVED);
    let text = files::read_to_string(&path).map_err(files::Error::io("read", &path))?;
    let table: Table = toml::from_str(&text).map_err(|error| Error::damaged(&path, &error))?;
    let schema = table.get("schema").and_then(Value::as_integer);
    NewerFormat::check(&path, schema.and_then(|schema| schema.try_into().ok()), SCHEMA)?;
    Ok(table)
}

/// All values by dotted keys: `optimizer.lr`, `data.transforms.train[0].size`. A list of plain
/// values is one value; empty lists are left out.
pub fn leaves(config: &Table) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    collect(&mut Vec::new(), &Value::Table(config.clone()), &mut found);
    found
}

fn collect(path: &mut Vec<String>, value: &Value, found: &mut BTreeMap<String, Value>) {
    let inner: Vec<(String, &Value)> = match value {
        Value::Table(keys) => keys.iter().map(|(key, value)| (key.clone(), value)).collect(),
        Value::Array(items) if items.iter().any(Value::is_table) => {
            items.iter().enumerate().map(|(at, value)| (at.to_string(), value)).collect()
        }
        // The same as an absent key, as in runs of earlier versions.
        Value::Array(items) if items.is_empty() => return,
        value => {
            found.insert(dotted(path), value.clone());
            return;
        }
    };
    for (key, value) in inner {
        path.push(key);
        collect(path, value, found);
        path.pop();
    }
}

/// A key in which runs differ.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Dotted name.
    pub key: String,
    /// Value in each run; `None` if a run has no such key.
    pub values: Vec<Option<Value>>,
}

/// The keys whose values are not the same in all of `configs`, sorted.
pub fn differences(configs: &[Table]) -> Vec<Difference> {
    let all: Vec<_> = configs.iter().map(leaves).collect();
    let keys: BTreeSet<&String> = all.iter().flat_map(BTreeMap::keys).collect();
    let rows = keys.into_iter().map(|key| Difference {
        key: key.clone(),
        values: all.iter().map(|leaves| leaves.get(key).cloned()).collect(),
    });
    rows.filter(|row| row.values.windows(2).any(|pair| pair[0] != pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn only_keys_that_differ_are_told_by_their_dotted_names() {
        let configs = [
            "a = 1\n[data]\nsize = [1, 2]\n[[data.train]]\nname = 'flip'\n[expect]\n'val/loss' = \
             1.0",
            "a = 1\n[data]\nsize = [1, 3]\n[[data.train]]\nname = 'crop'\np = \
             0.5\n[expect]\n'val/loss' = 1.0",
        ]
        .map(table);
        let found = differences(&configs);
        let keys: Vec<&str> = found.iter().map(|difference| difference.key.as_str()).collect();
        assert_eq!(keys, ["data.size", "data.train[0].name", "data.train[0].p"]);
        assert_eq!(found[2].values, [None, Some(Value::Float(0.5))]);
        assert!(leaves(&configs[0]).contains_key("expect.\"val/loss\""));
        assert_eq!(differences(&configs[..1]), []);
    }
}
