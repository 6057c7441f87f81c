//! The reference page with the options of all kinds.

use serde_json::Value;

use crate::config::kind::{FamilySpec, Key, Spec};

/// Columns of the page.
const WIDTH: usize = 118;

/// `page` with the kinds of each family in the place of `#: TABLE.name`, and their options in that
/// of `#: TABLE`.
pub(crate) fn page(page: &str, families: &[FamilySpec]) -> String {
    let family = |table: &str| families.iter().find(|family| family.table == table);
    let mut text = String::new();
    for line in page.lines() {
        match line.strip_prefix("#: ") {
            Some(place) => match place.strip_suffix(".name") {
                Some(table) => text.push_str(&family(table).map_or(String::new(), names)),
                None => text.push_str(&family(place).map_or(String::new(), |family| {
                    if family.lists.is_empty() { options(family) } else { entries(family) }
                })),
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

/// Each kind as an entry of its list.
fn entries(family: &FamilySpec) -> String {
    let list = family.lists.first().copied().unwrap_or_default();
    let entry = |kind: &Spec| {
        let told = kind.keys.iter().map(|key| format!(" `{}`: {}", key.name, meaning(key)));
        let about = format!("\"{}\": {}{}", kind.name, kind.about, told.collect::<String>());
        let mut text = format!("\n{}# [[{list}]]\n# name = \"{}\"\n", comment(&about), kind.name);
        for key in &kind.keys {
            text += &format!("# {} = {}\n", key.name, toml(&key.example));
        }
        text
    };
    let entries = family.kinds.iter().map(entry).collect::<String>();
    let key = family.entry_key.map(|about| format!("\n{}", comment(&format!("`key`: {about}"))));
    key.unwrap_or_default() + &entries
}

/// Each option once, in the order of the kinds.
fn options(family: &FamilySpec) -> String {
    let keys = family.kinds.iter().flat_map(|kind| kind.keys.iter().map(|key| &key.name));
    let mut told: Vec<&str> = Vec::new();
    keys.for_each(|key| {
        if !told.contains(&key.as_str()) {
            told.push(key);
        }
    });
    told.into_iter().map(|key| option(family, key)).collect()
}

/// What the option means to each kind that has it: kinds to which it means the same share a
/// paragraph.
fn option(family: &FamilySpec, name: &str) -> String {
    let mut meanings: Vec<(String, Vec<&str>)> = Vec::new();
    let mut example = None;
    for kind in &family.kinds {
        let Some(key) = kind.key(name) else { continue };
        example.get_or_insert(&key.example);
        let meaning = meaning(key);
        match meanings.iter_mut().find(|(told, _)| *told == meaning) {
            Some((_, kinds)) => kinds.push(kind.name),
            None => meanings.push((meaning, vec![kind.name])),
        }
    }
    let paragraphs =
        meanings.iter().map(|(told, kinds)| comment(&format!("{}: {told}", kinds.join(", "))));
    let example = example.map(toml).unwrap_or_default();
    format!("\n{}# {name} = {example}\n", paragraphs.collect::<String>())
}

fn meaning(key: &Key) -> String {
    let about = key.about.clone() + &inside(key);
    match (&key.default, key.required) {
        (Some(default), _) if !default.is_object() => {
            format!("{about} Default: {}.", toml(default))
        }
        (None, true) => format!("{about} Required."),
        _ => about,
    }
}

/// What the keys of an option that is a table mean.
fn inside(key: &Key) -> String {
    let keys = key.schema["properties"].as_object().into_iter().flatten();
    let one = |(name, schema): (&String, &Value)| {
        let about = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
        format!(" `{name}`: {about}")
    };
    keys.map(one).collect()
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

/// A value as TOML, on one line.
fn toml(value: &Value) -> String {
    if let Value::Object(keys) = value {
        let keys = keys.iter().map(|(key, value)| format!("{key} = {}", toml(value)));
        return format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "));
    }
    toml::Value::try_from(value).map_or_else(|_| value.to_string(), |value| value.to_string())
}
