//! A kind as JSON schema.

use serde_json::{Map, Value, json};

use crate::config::kind::Spec;

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

/// The kind's name as the only value.
pub(crate) fn name_of(kind: &Spec) -> Value {
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
