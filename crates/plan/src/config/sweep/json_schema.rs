//! The JSON schema of a sweep, from which editors complete and check TOML files.
//!
//! Meanings and defaults are those of the sweep's reference page, limits those of the reader, names
//! of parameters those of an experiment's keys, and the options of methods and pruners those of
//! their types.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::config::json_schema::of_kind;
use crate::config::kind::page;
use crate::config::sweep::checks::RESERVED;
use crate::config::sweep::load::COUNTS;
use crate::config::sweep::{METHOD, PRUNER};
use crate::config::vocabulary::Vocabulary;

/// Every key of a sweep.
const PAGE: &str = include_str!("sweep.toml");

/// The reference page of sweeps: every key with its meaning and its default, as TOML.
pub fn reference(vocabulary: &Vocabulary) -> String {
    page(PAGE, vocabulary.families())
}

/// The schema of the sweeps that a program with this vocabulary reads.
pub fn json_schema(vocabulary: &Vocabulary) -> Value {
    let mut sweep: Map<String, Value> = keys(vocabulary).into_iter().collect();
    for (name, low, high) in COUNTS {
        sweep.insert(name.into(), json!({ "type": "integer", "minimum": low, "maximum": high }));
    }
    let methods = vocabulary.family(METHOD).into_iter().flat_map(|family| &family.kinds);
    for kind in methods.filter(|kind| !kind.keys.is_empty()) {
        sweep.insert(kind.name.to_owned(), of_kind(kind, Map::new(), false));
    }
    let mut whole = json!({
        "schema": { "const": 1 },
        "base": { "type": "string" },
        "sweep": { "type": "object", "properties": sweep, "additionalProperties": false },
    });
    explain(&mut whole);
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A sweep of ddprun",
        "type": "object",
        "properties": whole,
        "required": ["schema", "base"],
        "additionalProperties": false,
        "definitions": definitions(),
    })
}

/// Keys of `[sweep]` that are no counts.
fn keys(vocabulary: &Vocabulary) -> BTreeMap<String, Value> {
    let metrics = vocabulary.watchable();
    let metrics: Vec<_> = metrics.into_iter().filter(|name| name.starts_with("val/")).collect();
    let metric = if metrics.is_empty() { json!({}) } else { json!({ "enum": metrics }) };
    let text = json!({ "type": "string" });
    let names = experiment_keys(vocabulary);
    let mut list = table_of(&names, &json!({ "$ref": "#/definitions/value" }));
    list["minProperties"] = 1.into();
    let keys = [
        ("name", json!({ "type": "string", "pattern": "^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$" })),
        ("method", names_of(vocabulary, METHOD)),
        ("metric", metric),
        ("goal", json!({ "enum": ["min", "max", "minimize", "maximize"] })),
        (
            "concurrent_trials",
            json!({ "anyOf": [
                { "const": "auto" },
                { "type": "integer", "minimum": 1, "maximum": 1024 },
            ] }),
        ),
        ("keep_pruned_checkpoints", json!({ "type": "boolean" })),
        ("constraints", json!({ "anyOf": [text, { "type": "array", "items": text }] })),
        ("parameters", table_of(&names, &json!({ "$ref": "#/definitions/parameter" }))),
        ("list", json!({ "type": "array", "items": list })),
        ("pruner", pruner(vocabulary)),
    ];
    keys.map(|(name, schema)| (name.to_owned(), schema)).into()
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
        properties.insert(table.to_owned(), table_of(&rest, value));
    }
    // A user's model takes any options, and expectations are named by metrics.
    json!({
        "type": "object",
        "properties": properties,
        "patternProperties": { "^(model\\.options|options|expect)(\\.|$)": {} },
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
        "value": { "type": ["string", "number", "boolean", "array"] },
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

/// Puts what the page says of each key beside its schema.
fn explain(whole: &mut Value) {
    let defaults: toml::Table = toml::from_str(PAGE).unwrap_or_default();
    let mut comment = Vec::new();
    for line in PAGE.lines() {
        let text = line.trim_start_matches("# ");
        let key = text.split_once(" = ").map(|(key, _)| key).filter(|key| is_key(key));
        let at = key.and_then(|key| {
            let paths = [format!("/{key}"), format!("/sweep/properties/{key}")];
            let path = paths.into_iter().find(|path| whole.pointer(path).is_some())?;
            Some((key, whole.pointer_mut(&path)?))
        });
        match at {
            Some((key, schema)) => {
                schema["description"] = comment.join(" ").into();
                let default = defaults["sweep"].get(key);
                if let Some(default) = default {
                    schema["default"] = serde_json::to_value(default).unwrap_or_default();
                }
                comment.clear();
            }
            None if line.starts_with("# ") => comment.push(text),
            None if line.starts_with("#:") => {}
            None => comment.clear(),
        }
    }
}

fn is_key(word: &str) -> bool {
    word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
}
