//! Kinds as data: names, options and rules, derived from their types; and families of kinds.

use std::fmt;

use figment::value::{Dict, Value as Given};
use serde_json::Value;

use crate::config::kind::{
    BuiltinSplits, Capability, Kind, Modality, OptionConflict, Options, Requirement,
};
use crate::config::table::generator;

/// A kind as data.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The value of `name`.
    pub name: &'static str,
    /// The first paragraph of the type's documentation.
    pub about: String,
    /// Options, in the order of their declaration.
    pub keys: Vec<Key>,
    /// Requirements on the rest of the experiment.
    pub requirements: &'static [Requirement],
    /// Capabilities that the rest of the experiment may use.
    pub capabilities: &'static [Capability],
    /// Modalities of samples that a model takes; empty = any.
    pub takes: Vec<Modality>,
    /// JSON schema of the options.
    pub schema: Value,
    read: fn(&Dict) -> Result<Options, Box<figment::Error>>,
    check: fn(&Options) -> Vec<OptionConflict>,
}

/// The part of a spec that needs the type of the kind. All else stands outside of generic
/// functions, which the compiler translates anew for each of some 150 kinds.
struct Type {
    name: &'static str,
    needs: &'static [Requirement],
    offers: &'static [Capability],
    read: fn(&Dict) -> Result<Options, Box<figment::Error>>,
    check: fn(&Options) -> Vec<OptionConflict>,
}

/// An option of a kind.
#[derive(Clone, Debug)]
pub struct Key {
    /// Name of the option.
    pub name: String,
    /// Meaning of the option.
    pub about: String,
    /// Default value; `None` if the option is required, or off by default.
    pub default: Option<Value>,
    /// A valid value.
    pub example: Value,
    /// True if it must be given.
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
            requirements: needs,
            capabilities: offers,
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
            needs: K::REQUIREMENTS,
            offers: K::CAPABILITIES,
            read: read::<K>,
            check: check::<K>,
        };
        kind.described(schema)
    }

    /// The option `name`.
    pub fn key(&self, name: &str) -> Option<&Key> {
        self.keys.iter().find(|key| key.name == name)
    }

    /// Type of its samples, if it is a data set.
    pub fn modality(&self) -> Option<Modality> {
        self.capabilities.iter().find_map(|offer| match offer {
            Capability::Samples(modality) => Some(*modality),
            _ => None,
        })
    }

    /// Own validation and test parts, if samples can be held back.
    pub(crate) fn own_parts(&self) -> Option<BuiltinSplits> {
        self.capabilities.iter().find_map(|offer| match offer {
            Capability::Split(parts) => Some(*parts),
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

    /// Violations of the rules between options.
    pub fn check(&self, options: &Options) -> Vec<OptionConflict> {
        (self.check)(options)
    }
}

impl Key {
    /// True if its value names a file or folder to read: `#[schemars(extend("format" = "path"))]`.
    /// Paths to write have the format `output-path`, paths of another machine `remote-path`.
    pub fn is_path(&self) -> bool {
        self.schema["format"] == "path"
    }
}

/// A family of kinds: all that one `name` chooses among.
#[derive(Clone, Debug)]
pub struct FamilySpec {
    /// The table whose `name` chooses.
    pub table: &'static str,
    /// Noun for one of its kinds.
    pub noun: &'static str,
    /// Lists each of whose entries is one of its kinds; none = the table is one.
    pub lists: &'static [&'static str],
    /// The kind of the table above that these lists are a part of; `None` = of all.
    pub lists_of: Option<&'static str>,
    /// Meaning of the `key` of its lists' entries, in words; `None` = they have none.
    pub entry_key: Option<&'static str>,
    /// Kinds, in the order of their registration.
    pub kinds: Vec<Spec>,
    /// Kinds that this build of the program is without.
    pub left_out: Vec<LeftOut>,
}

/// A kind that a build is without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// The value of `name`.
    pub name: &'static str,
    /// The feature of cargo that brings it.
    pub feature: &'static str,
}

impl LeftOut {
    /// The remedy.
    pub fn help(&self) -> String {
        format!("build it with `--features {}`", self.feature)
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this build of ddprun is without `{}`", self.name)
    }
}

impl FamilySpec {
    /// The kind called `name`.
    pub fn kind(&self, name: &str) -> Option<&Spec> {
        self.kinds.iter().find(|kind| kind.name == name)
    }

    /// The kind called `name`, if this build is without it.
    pub fn left_out(&self, name: &str) -> Option<&LeftOut> {
        self.left_out.iter().find(|kind| kind.name == name)
    }

    /// Names of all kinds.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.kinds.iter().map(|kind| kind.name)
    }

    /// Names of the kinds that have the option `key`.
    pub fn owners<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.kinds.iter().filter(move |kind| kind.key(key).is_some()).map(|kind| kind.name)
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

/// True if `value` is an empty table.
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

fn check<K: Kind>(options: &Options) -> Vec<OptionConflict> {
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
