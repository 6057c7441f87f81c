//! The JSON schema of an experiment, from which editors complete and check TOML files.
//!
//! Types, words and meanings are those of the schema's structs, ranges those of `check`, defaults
//! those of the reference page, and the options of each kind those of its type.

use figment::value::Value as Given;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::config::check::limits;
use crate::config::keys::DEFAULTS;
use crate::config::kind::{FamilySpec, SINKS, Spec, TABLES};
use crate::config::schema::Experiment;
use crate::config::spans;
use crate::config::vocabulary::Vocabulary;

/// The schema of the experiments that a program with this vocabulary reads.
pub fn json_schema(vocabulary: &Vocabulary) -> Value {
    let mut root = SchemaSettings::draft07()
        .with(|settings| settings.inline_subschemas = false)
        .into_generator()
        .into_root_schema_for::<Experiment>()
        .to_value();
    loosen(&mut root);
    let defaults = spans::document(DEFAULTS).dict;
    give_defaults(&mut root, &Given::from(defaults));
    for (key, bounds) in limits() {
        bound(&mut root, &key, &bounds);
    }
    // Before the tables that they are in become choices.
    for family in vocabulary.lists() {
        list(&mut root, family);
    }
    for family in vocabulary.families().iter().filter(|family| TABLES.contains(&family.table)) {
        choose(&mut root, family);
    }
    if let (Some(family), Some(sinks)) = (vocabulary.family(SINKS), at(&mut root, SINKS)) {
        let name = |kind: &Spec| json!({ "const": kind.name, "description": kind.about });
        sinks["items"] = json!({ "oneOf": family.kinds.iter().map(name).collect::<Vec<_>>() });
        sinks["uniqueItems"] = true.into();
    }
    root["properties"]["extends"] = json!({
        "description": "Weaker files that this one builds on, relative to this file.",
        "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }],
    });
    root["title"] = "An experiment of ddprun".into();
    root
}

/// Nothing is required but the name of an entry of a list: whatever a file lacks has a default, or
/// is asked for with the other keys in view.
fn loosen(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            let is_entry = keys
                .get("required")
                .and_then(Value::as_array)
                .is_some_and(|required| required.len() == 1 && required[0] == "name");
            if !is_entry {
                keys.remove("required");
            }
            keys.values_mut().for_each(loosen);
        }
        Value::Array(items) => items.iter_mut().for_each(loosen),
        _ => {}
    }
}

/// The schema of the key with this dotted name.
fn at<'a>(root: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    let mut path = String::new();
    for part in key.split('.') {
        path += "/properties/";
        path += part;
        // A table has its schema among the definitions, with its description beside the reference.
        while let Some(reference) = reference(root.pointer(&path)?) {
            path = reference.trim_start_matches('#').to_owned();
        }
    }
    root.pointer_mut(&path)
}

/// What a schema refers to.
fn reference(schema: &Value) -> Option<&str> {
    schema.get("$ref").or_else(|| schema.pointer("/allOf/0/$ref"))?.as_str()
}

/// Writes each default beside the schema of its key.
fn give_defaults(root: &mut Value, defaults: &Given) {
    let mut open = vec![(String::new(), defaults)];
    while let Some((path, value)) = open.pop() {
        if let Given::Dict(_, keys) = value {
            let dotted =
                |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            open.extend(keys.iter().map(|(key, value)| (dotted(key), value)));
        } else if let Some(schema) = at(root, &path).and_then(Value::as_object_mut) {
            schema.insert("default".to_owned(), serde_json::to_value(value).unwrap_or_default());
        }
    }
}

/// Bounds of a number, in each form in which the key takes numbers.
fn bound(root: &mut Value, key: &str, bounds: &Map<String, Value>) {
    let Some(schema) = at(root, key).and_then(Value::as_object_mut) else { return };
    let is_number = |schema: &Map<String, Value>| match schema.get("type") {
        Some(Value::String(kind)) => kind == "integer" || kind == "number",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "integer" || kind == "number"),
        _ => false,
    };
    if is_number(schema) {
        schema.extend(bounds.clone());
    }
    let forms = schema.get_mut("anyOf").and_then(Value::as_array_mut).into_iter().flatten();
    for form in forms.filter_map(Value::as_object_mut) {
        if is_number(form) {
            form.extend(bounds.clone());
        }
    }
}

/// Makes the table of a family one of its kinds, each with its own options; the default kind needs
/// no name.
fn choose(root: &mut Value, family: &FamilySpec) {
    let Some(table) = at(root, family.table) else { return };
    let mut shared = table["properties"].as_object().cloned().unwrap_or_default();
    shared.remove("options");
    let default = shared.get("name").map(|name| name["default"].clone()).unwrap_or_default();
    let kind = |kind: &Spec| of_kind(kind, shared.clone(), default != kind.name);
    *table = json!({
        "description": table["description"],
        "oneOf": family.kinds.iter().map(kind).collect::<Vec<_>>(),
    });
}

/// Makes each list of the family one of its kinds, and lists inside of them too.
fn list(root: &mut Value, family: &FamilySpec) {
    let entry = json!({ "$ref": format!("#/definitions/{}", family.noun) });
    let items = json!({ "type": "array", "items": entry });
    for list in family.lists {
        if let Some(keys) = at(root, list).and_then(Value::as_object_mut) {
            keys.insert("items".to_owned(), entry.clone());
        }
    }
    let kind = |kind: &Spec| {
        let mut properties = Map::new();
        properties
            .insert("name".to_owned(), json!({ "const": kind.name, "description": kind.about }));
        if let Some(about) = family.entry_key {
            properties.insert("key".to_owned(), json!({ "type": "string", "description": about }));
        }
        for key in &kind.keys {
            let mut schema = if key.is_list() { items.clone() } else { key.schema.clone() };
            let keys = schema.as_object_mut().into_iter();
            keys.for_each(|keys| {
                drop(keys.insert("description".to_owned(), key.about.clone().into()));
            });
            if let (Some(schema), Some(default)) = (schema.as_object_mut(), &key.default) {
                schema.insert("default".to_owned(), default.clone());
            }
            properties.insert(key.name.clone(), schema);
        }
        let needed = kind.keys.iter().filter(|key| key.required).map(|key| key.name.clone());
        json!({
            "type": "object",
            "description": kind.about,
            "properties": properties,
            "required": std::iter::once("name".to_owned()).chain(needed).collect::<Vec<_>>(),
            "additionalProperties": false,
        })
    };
    root["definitions"][family.noun] =
        json!({ "oneOf": family.kinds.iter().map(kind).collect::<Vec<_>>() });
}

/// A table of the kind's name, its options and keys that all kinds share; of a kind that is not
/// named with its options alone.
pub(crate) fn of_kind(kind: &Spec, mut shared: Map<String, Value>, is_named: bool) -> Value {
    if is_named {
        return of_kind_named(kind, shared, "name");
    }
    if shared.contains_key("name") {
        shared.insert("name".to_owned(), name_of(kind));
    }
    table(kind, shared, None)
}

/// A table of the options of a kind, whose name stands at `key`.
pub(crate) fn of_kind_named(kind: &Spec, mut shared: Map<String, Value>, key: &str) -> Value {
    shared.insert(key.to_owned(), name_of(kind));
    table(kind, shared, Some(key))
}

fn name_of(kind: &Spec) -> Value {
    json!({ "const": kind.name, "description": kind.about })
}

fn table(kind: &Spec, mut properties: Map<String, Value>, named: Option<&str>) -> Value {
    for key in &kind.keys {
        let mut schema = key.schema.clone();
        if let (Some(schema), Some(default)) = (schema.as_object_mut(), &key.default) {
            schema.insert("default".to_owned(), default.clone());
        }
        properties.insert(key.name.clone(), schema);
    }
    let named = named.map(str::to_owned);
    let needed = kind.keys.iter().filter(|key| key.required).map(|key| key.name.clone());
    json!({
        "type": "object",
        "description": kind.about,
        "properties": properties,
        "required": named.into_iter().chain(needed).collect::<Vec<_>>(),
        "additionalProperties": false,
    })
}
