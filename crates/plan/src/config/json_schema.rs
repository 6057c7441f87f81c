//! The JSON schema of an experiment, from which editors complete and check TOML files.
//!
//! It is that of the declarations, in which tables and entries that choose a kind are one of their
//! kinds.

use serde_json::{Map, Value, json};

use crate::config::kind::{BACKEND, FamilySpec, SINKS, Spec, TABLES, name_of, of_kind};
use crate::config::schema::{AUTO_BACKEND, AUTO_BACKEND_ABOUT, DECLARED};
use crate::config::table::OPTIONS;
use crate::config::vocabulary::Vocabulary;

/// The schema of the experiments that a program with this vocabulary reads.
pub fn json_schema(vocabulary: &Vocabulary) -> Value {
    let mut root = DECLARED.clone();
    // Before the tables that they are in become choices.
    for family in vocabulary.lists() {
        list(&mut root, family);
    }
    for family in vocabulary.families().iter().filter(|family| TABLES.contains(&family.table)) {
        choose(&mut root, family);
    }
    if let Some(sinks) = at(&mut root, SINKS) {
        sinks["uniqueItems"] = true.into();
    }
    if let (Some(family), Some(backend)) = (vocabulary.family(BACKEND), at(&mut root, BACKEND)) {
        let word = |(name, about)| json!({ "type": "string", "const": name, "description": about });
        let kinds = family.kinds.iter().map(|kind| (kind.name, kind.about.as_str()));
        let words = std::iter::once((AUTO_BACKEND, AUTO_BACKEND_ABOUT)).chain(kinds).map(word);
        let words: Vec<Value> = words.collect();
        let keys = backend.as_object_mut().into_iter();
        keys.for_each(|keys| drop(keys.shift_remove("type")));
        backend["oneOf"] = words.into();
    }
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    root["title"] = "An experiment of ddprun".into();
    root
}

/// The schema of the key with this dotted name.
fn at<'a>(root: &'a mut Value, key: &str) -> Option<&'a mut Value> {
    root.pointer_mut(&format!("/properties/{}", key.replace('.', "/properties/")))
}

/// Makes the table of a family one of its kinds, each with its own options; the default kind needs
/// no name.
fn choose(root: &mut Value, family: &FamilySpec) {
    let Some(table) = at(root, family.table) else { return };
    let mut shared = table["properties"].as_object().cloned().unwrap_or_default();
    shared.shift_remove(OPTIONS);
    let default = shared.get("name").and_then(|name| name.get("default")).cloned();
    let default = default.unwrap_or_default();
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
    let is_name =
        |kind: &&Spec| family.lists.contains(&SINKS) && !kind.keys.iter().any(|key| key.required);
    let names = family.kinds.iter().filter(is_name).map(name_of);
    let choices: Vec<Value> = names.chain(family.kinds.iter().map(kind)).collect();
    root["definitions"][family.noun] = json!({ "oneOf": choices });
}
