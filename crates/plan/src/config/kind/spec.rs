//! What is known of a kind without using it: derived from its type.

use figment::value::{Dict, Value as Given};
use serde_json::Value;

use crate::config::kind::{Kind, Modality, Need, Offer, Options, OwnParts, Wrong};
use crate::config::table::generator;

/// A kind as data.
#[derive(Clone, Debug)]
pub struct Spec {
    /// What `name` says.
    pub name: &'static str,
    /// The first paragraph of the type's documentation.
    pub about: String,
    /// Its options, in the order of their declaration.
    pub keys: Vec<Key>,
    /// What it needs of the rest of the experiment.
    pub needs: &'static [Need],
    /// What the rest of the experiment may build on.
    pub offers: &'static [Offer],
    /// Modalities of samples that a model takes; empty = any.
    pub takes: Vec<Modality>,
    /// JSON schema of the options.
    pub schema: Value,
    read: fn(&Dict) -> Result<Options, Box<figment::Error>>,
    check: fn(&Options) -> Vec<Wrong>,
}

/// What only the type of a kind knows. All else stands outside of generic functions: there are some
/// 150 kinds, and the compiler translates those anew for each.
struct Type {
    name: &'static str,
    needs: &'static [Need],
    offers: &'static [Offer],
    read: fn(&Dict) -> Result<Options, Box<figment::Error>>,
    check: fn(&Options) -> Vec<Wrong>,
}

/// An option of a kind.
#[derive(Clone, Debug)]
pub struct Key {
    /// Its name.
    pub name: String,
    /// What it means.
    pub about: String,
    /// Its value where none is given; `None` if it has to be given, or is off without a value.
    pub default: Option<Value>,
    /// A value that it takes.
    pub example: Value,
    /// Whether it has to be given.
    pub required: bool,
    /// JSON schema of its value.
    pub schema: Value,
}

impl Type {
    fn described(self, schema: Value) -> Spec {
        let required: Vec<&str> = schema["required"]
            .as_array()
            .map(|keys| keys.iter().filter_map(Value::as_str).collect())
            .unwrap_or_default();
        let defaults = (self.read)(&Dict::new()).unwrap_or_default();
        let properties = schema["properties"].as_object().into_iter().flatten();
        let key = |(name, schema): (&String, &Value)| {
            let default = schema.get("default").or(defaults.get(name));
            let default = default.cloned().map(without_nulls);
            let default = default.filter(|value| !value.is_null() && !is_empty(value));
            Key {
                name: name.clone(),
                about: text(&schema["description"]),
                example: example(schema, default.as_ref()),
                default,
                required: required.contains(&name.as_str()),
                schema: schema.clone(),
            }
        };
        let Self { name, needs, offers, read, check } = self;
        Spec {
            name,
            about: text(&schema["description"]),
            keys: properties.map(key).collect(),
            needs,
            offers,
            takes: Vec::new(),
            schema,
            read,
            check,
        }
    }
}

impl Spec {
    /// The spec of `K`.
    pub fn of<K: Kind>() -> Self {
        let schema = generator().into_root_schema_for::<K>().to_value();
        let kind = Type {
            name: K::NAME,
            needs: K::NEEDS,
            offers: K::OFFERS,
            read: read::<K>,
            check: check::<K>,
        };
        kind.described(schema)
    }

    /// The option `name`.
    pub fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// What its samples are, if it says so.
    pub fn modality(&self) -> Option<Modality> {
        self.offers.iter().find_map(|offer| match offer {
            Offer::Samples(modality) => Some(*modality),
            _ => None,
        })
    }

    /// What can be held back of its samples, if anything can.
    pub(crate) fn own_parts(&self) -> Option<OwnParts> {
        self.offers.iter().find_map(|offer| match offer {
            Offer::Split(parts) => Some(*parts),
            _ => None,
        })
    }

    /// The options `given`, completed with defaults.
    ///
    /// # Errors
    ///
    /// An option that is missing, or of another type; its path begins at the option.
    pub(crate) fn read(&self, given: &Dict) -> Result<Options, Box<figment::Error>> {
        (self.read)(given)
    }

    /// What the options break of the rules between them.
    pub fn check(&self, options: &Options) -> Vec<Wrong> {
        (self.check)(options)
    }
}

impl Key {
    /// Whether its value names a file or folder that is read: `#[schemars(extend("format" =
    /// "path"))]`. One that is written has the format `output-path`, one of another machine
    /// `remote-path`.
    pub fn is_path(&self) -> bool {
        self.schema["format"] == "path"
    }
}

/// The options of `kind`, without those that are off.
pub(super) fn options<K: Kind>(kind: &K) -> Options {
    given(serde_json::to_value(kind).unwrap_or_default())
}

fn given(fields: Value) -> Options {
    match without_nulls(fields) {
        Value::Object(fields) => fields.into_iter().filter(|(_, value)| !is_empty(value)).collect(),
        _ => Options::new(),
    }
}

/// TOML has no null: what is off is left out.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let given = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(given.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        other => other,
    }
}

/// Whether `value` is a table in which nothing is given.
fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// The kind whose options are `options`.
///
/// # Errors
///
/// The options are not those of the kind, which checked options always are.
pub fn parse<K: Kind>(options: &Options) -> Result<K, serde_json::Error> {
    serde_json::from_value(table(options))
}

fn table(options: &Options) -> Value {
    Value::Object(options.clone().into_iter().collect())
}

fn read<K: Kind>(given: &Dict) -> Result<Options, Box<figment::Error>> {
    let kind = as_given(given).deserialize::<K>().map_err(Box::new)?;
    Ok(options(&kind))
}

fn as_given(options: &Dict) -> Given {
    Given::from(options.clone())
}

fn check<K: Kind>(options: &Options) -> Vec<Wrong> {
    parse::<K>(options).map(|kind| kind.check()).unwrap_or_default()
}

/// A documentation comment as one line.
fn text(description: &Value) -> String {
    description.as_str().unwrap_or_default().replace('\n', " ")
}

/// A value that `schema` admits: its example, its default, or the smallest.
pub(crate) fn example(schema: &Value, default: Option<&Value>) -> Value {
    if let Some(example) = schema["examples"].get(0).or(default) {
        return example.clone();
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
    match kind {
        Some("object") => {
            let keys = schema["properties"].as_object().into_iter().flatten();
            keys.map(|(key, schema)| (key.clone(), example(schema, None))).collect()
        }
        Some("integer" | "number") => schema.get("minimum").cloned().unwrap_or(1.into()),
        Some("boolean") => true.into(),
        Some("array") => Value::Array(Vec::new()),
        _ => schema["enum"].get(0).cloned().unwrap_or_else(|| "...".into()),
    }
}
