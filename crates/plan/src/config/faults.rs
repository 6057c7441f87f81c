//! Values that a type does not take, and values that it lacks: all of them at once.
//!
//! serde stops at the first wrong value. So where the whole cannot be read, each value is read on
//! its own, in a table that lacks nothing else.

use figment::error::Kind;
use figment::value::{Dict, Value as Given};
use serde_json::Value;

use crate::config::keys::{join, needs, stand_in};
use crate::config::spans::Path;
use crate::config::table::{each_of, keys_of, on_the_way, words_of};

/// Most that are looked for.
const MAX_FAULTS: usize = 60;

/// A value that is wrong or missing.
pub(crate) struct Fault<'a> {
    /// Where, from the table on.
    pub(crate) path: Path,
    /// The error of its type; `None` if a required value is missing.
    pub(crate) kind: Option<Kind>,
    /// The schema of the key, if it is declared.
    pub(crate) schema: Option<&'a Value>,
}

/// Returns the error of a type about the first value that it does not take.
pub(crate) type ReadTable<'a> = &'a dyn Fn(&Dict) -> Option<Box<figment::Error>>;

/// Faults of `given`, the keys of a table with this schema, which `read` reads.
pub(crate) fn faults<'a>(schema: &'a Value, read: ReadTable<'_>, given: &Dict) -> Vec<Fault<'a>> {
    let mut search = Search { schema, read, found: Vec::new() };
    let mut whole = given.clone();
    search.fill(schema, &mut whole, &Path::new());
    let Some(error) = read(&whole) else { return search.found };
    let n_missing = search.found.len();
    search.table(schema, given, &Path::new());
    if search.found.len() == n_missing {
        search.push(&Path::new(), *error);
    }
    search.found
}

struct Search<'a, 'b> {
    schema: &'a Value,
    read: ReadTable<'b>,
    found: Vec<Fault<'a>>,
}

impl<'a> Search<'a, '_> {
    /// Fills in examples for required keys that `table`, which is at `path`, does not have.
    fn fill(&mut self, schema: &'a Value, table: &mut Dict, path: &Path) {
        for (key, inner) in keys_of(schema).into_iter().flatten() {
            let path = join(path, key);
            match table.get_mut(key) {
                Some(Given::Dict(_, table)) => self.fill(form_of(inner, "object"), table, &path),
                Some(Given::Array(_, items)) if inner["items"]["properties"].is_object() => {
                    for (index, item) in items.iter_mut().enumerate() {
                        let Given::Dict(_, table) = item else { continue };
                        let path = join(&path, &index.to_string());
                        self.fill(&inner["items"], table, &path);
                    }
                }
                None if needs(schema, key, inner) => {
                    table.insert(key.clone(), stand_in(inner));
                    self.found.push(Fault { path, kind: None, schema: Some(inner) });
                }
                _ => {}
            }
        }
    }

    /// Tries each value of `table`.
    fn table(&mut self, schema: &'a Value, table: &Dict, path: &Path) {
        for (key, value) in table {
            let keys = keys_of(schema).and_then(|keys| keys.get(key));
            if let Some(inner) = keys.or(each_of(schema)) {
                let path = join(path, key);
                self.value(inner, value, &path);
            }
        }
    }

    fn value(&mut self, schema: &'a Value, value: &Given, path: &Path) {
        if self.found.len() >= MAX_FAULTS {
            return;
        }
        let form = form_of(schema, shape_of(value));
        if let Given::Dict(_, table) = value
            && (keys_of(form).is_some() || each_of(form).is_some())
        {
            return self.table(form, table, path);
        }
        let Some(mut error) = (self.read)(&self.alone(path, value)) else { return };
        if value.as_dict().is_some() && !words_of(form).is_empty() {
            // serde takes the first key of a table for the word.
            error.path.truncate(path.len());
        }
        let n_before = self.found.len();
        if let (Given::Array(_, items), Some(inner)) = (value, form.get("items")) {
            for (index, item) in items.iter().enumerate() {
                self.value(inner, item, &join(path, &index.to_string()));
            }
        }
        if self.found.len() == n_before {
            self.push(path, *error);
        }
    }

    /// The table with only this value, and those without which it cannot be read.
    fn alone(&self, path: &[String], value: &Given) -> Dict {
        nested(self.schema, path, value).into_dict().unwrap_or_default()
    }

    /// Notes what is wrong with the value at `path`, or inside of it.
    fn push(&mut self, path: &Path, error: figment::Error) {
        let inside = error.path.get(path.len()..).unwrap_or_default();
        let mut path = [&path[..], inside].concat();
        let kind = match error.kind {
            Kind::MissingField(field) => {
                path.push(field.to_string());
                None
            }
            kind => Some(kind),
        };
        let schema = schema_of(self.schema, &path);
        self.found.push(Fault { path, kind, schema });
    }
}

/// `value` inside of the tables and lists that lead to it.
fn nested(schema: &Value, path: &[String], value: &Given) -> Given {
    let Some((key, rest)) = path.split_first() else { return value.clone() };
    let list = form_of(schema, "array");
    if let (true, Some(items)) = (key.parse::<usize>().is_ok(), list.get("items")) {
        // A list of a fixed length is not too short because of this value.
        let n = list["minItems"].as_u64().unwrap_or(1).max(1) as usize;
        return Given::from(vec![nested(items, rest, value); n]);
    }
    let schema = form_of(schema, "object");
    let mut table = Dict::new();
    for (other, inner) in keys_of(schema).into_iter().flatten() {
        if other != key && needs(schema, other, inner) {
            table.insert(other.clone(), stand_in(inner));
        }
    }
    let inner = keys_of(schema).and_then(|keys| keys.get(key)).or(each_of(schema));
    table.insert(key.clone(), nested(inner.unwrap_or(&Value::Null), rest, value));
    Given::from(table)
}

fn schema_of<'a>(schema: &'a Value, path: &[String]) -> Option<&'a Value> {
    let all: Vec<&Value> = on_the_way(schema, path).collect();
    all.get(path.len().checked_sub(1)?).copied()
}

/// The JSON type of a value, of numbers "integer".
pub(crate) fn shape_of(value: &Given) -> &'static str {
    match value {
        Given::Array(..) => "array",
        Given::Dict(..) => "object",
        Given::String(..) => "string",
        _ => "integer",
    }
}

/// The form of a key that has this JSON type, or the schema itself if there is none.
pub(crate) fn form_of<'a>(schema: &'a Value, shape: &str) -> &'a Value {
    let mut forms = schema["anyOf"].as_array().into_iter().flatten();
    forms.rfind(|form| form["type"] == shape).unwrap_or(schema)
}
