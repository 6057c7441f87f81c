//! The reference page with the options of all kinds.

use serde_json::Value;

use crate::config::kind::{FamilySpec, Key, Spec};

/// Columns of the page.
const WIDTH: usize = 118;

/// `page` with the kinds of each family in the place of `#: TABLE.name`, and their options in that of `#: TABLE`.
pub(crate) fn page(page: &str, families: &[FamilySpec]) -> String {
    let family = |table: &str| families.iter().find(|family| family.table == table);
    let mut text = String::new();
    for line in page.lines() {
        match line.strip_prefix("#: ") {
            Some(place) => match place.strip_suffix(".name") {
                Some(table) => text.push_str(&family(table).map_or(String::new(), names)),
                None => text.push_str(&family(place).map_or(String::new(), options)),
            },
            None => text = text + line + "\n",
        }
    }
    text
}

/// Each kind and what it is.
fn names(family: &FamilySpec) -> String {
    let name = |kind: &Spec| comment(&format!("\"{}\": {}", kind.name, kind.about));
    family.kinds.iter().map(name).collect()
}

/// Each option once: kinds that share one share its meaning.
fn options(family: &FamilySpec) -> String {
    let mut text = String::new();
    let mut told: Vec<&str> = Vec::new();
    for kind in &family.kinds {
        for key in &kind.keys {
            if !told.contains(&key.name.as_str()) {
                told.push(&key.name);
                text.push_str(&option(family, key));
            }
        }
    }
    text
}

fn option(family: &FamilySpec, key: &Key) -> String {
    let owners: Vec<&Spec> =
        family.kinds.iter().filter(|kind| kind.key(&key.name).is_some()).collect();
    let names: Vec<&str> = owners.iter().map(|kind| kind.name).collect();
    let default = match (&key.default, key.required) {
        (Some(default), _) => format!(" Default: {}.", toml(default)),
        (None, true) => " Required.".to_owned(),
        (None, false) => String::new(),
    };
    let about = format!("{}: {}{default}", names.join(", "), key.about);
    let example = format!("# {} = {}\n", key.name, toml(&key.example));
    format!("\n{}{example}", comment(&about))
}

/// `text` as comment lines.
fn comment(text: &str) -> String {
    let mut lines = vec![String::from("#")];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= WIDTH => *line = format!("{line} {word}"),
            _ => lines.push(format!("# {word}")),
        }
    }
    lines.join("\n") + "\n"
}

/// A value as TOML.
fn toml(value: &Value) -> String {
    toml::Value::try_from(value).map_or_else(|_| value.to_string(), |value| value.to_string())
}
