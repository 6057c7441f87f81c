//! The JSON schema of a sweep, from which editors complete and check TOML files.
//!
//! It is that of the declarations; names of parameters are an experiment's keys, and the options of
//! methods and pruners those of their types.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::config::kind::of_kind;
use crate::config::kind::page;
use crate::config::sweep::checks::RESERVED;
use crate::config::sweep::file::DECLARED;
use crate::config::sweep::{METHOD, PRUNER};
use crate::config::vocabulary::Vocabulary;

/// The reference page of sweeps: every key with its meaning and its default, as TOML.
pub fn reference(vocabulary: &Vocabulary) -> String {
    page(&DECLARED, vocabulary.families())
}

/// The schema of the sweeps that a program with this vocabulary reads.
pub fn json_schema(vocabulary: &Vocabulary) -> Value {
    let mut root = DECLARED.clone();
    let sweep = &mut root["properties"]["sweep"]["properties"];
    for (name, form) in forms(vocabulary) {
        let keys = sweep[name].as_object_mut().into_iter();
        keys.for_each(|keys| keys.extend(form.as_object().cloned().unwrap_or_default()));
    }
    let methods = vocabulary.family(METHOD).into_iter().flat_map(|family| &family.kinds);
    for kind in methods.filter(|kind| !kind.keys.is_empty()) {
        sweep[kind.name] = of_kind(kind, Map::new(), false);
    }
    root["properties"]["schema"]["const"] = 1.into();
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    root["title"] = "A sweep of ddprun".into();
    root["required"] = json!(["schema", "base"]);
    root["definitions"] = definitions();
    root
}

/// Schemas of the keys of `[sweep]` that depend on the vocabulary.
fn forms(vocabulary: &Vocabulary) -> Vec<(&'static str, Value)> {
    let metrics = vocabulary.watchable();
    let metrics: Vec<_> = metrics.into_iter().filter(|name| name.starts_with("val/")).collect();
    let metric = if metrics.is_empty() { json!({}) } else { json!({ "enum": metrics }) };
    let names = experiment_keys(vocabulary);
    let mut list = table_of(&names, &json!({ "$ref": "#/definitions/value" }));
    list["minProperties"] = 1.into();
    vec![
        ("method", names_of(vocabulary, METHOD)),
        ("metric", metric),
        ("parameters", table_of(&names, &json!({ "$ref": "#/definitions/parameter" }))),
        ("list", json!({ "type": "array", "items": list })),
        ("pruner", pruner(vocabulary)),
    ]
}

/// The name of a kind of `family`.
fn names_of(vocabulary: &Vocabulary, family: &str) -> Value {
    let Some(family) = vocabulary.family(family) else { return json!({ "type": "string" }) };
    let kinds = family.kinds.iter();
    let names: Vec<Value> =
        kinds.map(|kind| json!({ "const": kind.name, "description": kind.about })).collect();
    json!({ "oneOf": names })
}

/// A name, or a table with a name and options.
fn pruner(vocabulary: &Vocabulary) -> Value {
    let kinds = vocabulary.family(PRUNER).into_iter().flat_map(|family| &family.kinds);
    let tables: Vec<Value> = kinds.map(|kind| of_kind(kind, Map::new(), true)).collect();
    json!({ "anyOf": [names_of(vocabulary, PRUNER), { "oneOf": tables }] })
}

/// Keys of an experiment that trials may change.
fn experiment_keys(vocabulary: &Vocabulary) -> Vec<String> {
    let is_own = |key: &String| {
        let is_reserved = |(reserved, _): &(&str, &str)| {
            key == reserved || key.strip_prefix(reserved).is_some_and(|rest| rest.starts_with('.'))
        };
        !RESERVED.iter().any(is_reserved)
    };
    vocabulary.keys().into_iter().filter(is_own).collect()
}

/// A table whose keys are `names`, dotted or as tables of tables, each with a value of this schema.
fn table_of(names: &[String], value: &Value) -> Value {
    let mut properties = Map::new();
    let mut tables: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for name in names {
        properties.insert(name.clone(), value.clone());
        if let Some((table, rest)) = name.split_once('.') {
            tables.entry(table).or_default().push(rest.to_owned());
        }
    }
    for (table, rest) in tables {
        // A table of keys, or whole tables as values.
        let keys = table_of(&rest, value);
        properties.insert(table.to_owned(), json!({ "anyOf": [keys, value] }));
    }
    // A user's model takes any options, expectations are named by metrics, and entries of lists by
    // their indices.
    json!({
        "type": "object",
        "properties": properties,
        "patternProperties": {
            "^(model\\.options|options|expect)(\\.|$)": {},
            "\\[[0-9]+\\](\\.|$)": value,
        },
        "additionalProperties": false,
    })
}

/// Forms of parameters.
fn definitions() -> Value {
    let domain = |distributions: &[&str], min: Value, needs_q: bool| {
        let mut required = vec!["distribution", "min", "max"];
        let mut properties = json!({
            "distribution": { "enum": distributions },
            "min": min,
            "max": { "type": min["type"] },
            "when": { "type": "object" },
        });
        if needs_q {
            required.push("q");
            properties["q"] = json!({ "type": "number", "exclusiveMinimum": 0 });
        }
        json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        })
    };
    let number = || json!({ "type": "number" });
    json!({
        "value": { "type": ["string", "number", "boolean", "array", "object"] },
        "values": { "type": "array", "minItems": 1, "uniqueItems": true },
        "domain": { "anyOf": [
            {
                "type": "object",
                "properties": {
                    "distribution": { "const": "categorical" },
                    "values": { "$ref": "#/definitions/values" },
                    "when": { "type": "object" },
                },
                "required": ["values"],
                "additionalProperties": false,
            },
            domain(&["uniform"], number(), false),
            domain(&["log_uniform"], json!({ "type": "number", "exclusiveMinimum": 0 }), false),
            domain(&["int_uniform"], json!({ "type": "integer" }), false),
            domain(&["int_log_uniform"], json!({ "type": "integer", "minimum": 1 }), false),
            domain(&["q_uniform"], number(), true),
        ] },
        "parameter": { "anyOf": [
            {
                "allOf": [{ "$ref": "#/definitions/values" }],
                "items": { "$ref": "#/definitions/value" },
            },
            { "type": "array", "minItems": 1, "items": { "$ref": "#/definitions/domain" } },
            { "$ref": "#/definitions/domain" },
        ] },
    })
}
