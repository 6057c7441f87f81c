//! The reference page with the options of all kinds.

use serde_json::Value;

use crate::config::kind::{FamilySpec, Key, Spec};

/// Instead of a default.
const REQUIRED: &str = "Required.";
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

/// As [`page`], with the kinds of each family but without their options.
pub(crate) fn index(page: &str, families: &[FamilySpec]) -> String {
    let family = |table: &str| families.iter().find(|family| family.table == table);
    let mut text = String::new();
    for line in page.lines() {
        let Some(place) = line.strip_prefix("#: ") else {
            text = text + line + "\n";
            continue;
        };
        let (table, is_name) = match place.strip_suffix(".name") {
            Some(table) => (table, true),
            None => (place, false),
        };
        let Some(family) = family(table) else { continue };
        if is_name || !family.lists.is_empty() {
            text.push_str(&names(family));
        }
        let has_options = family.kinds.iter().find(|kind| !kind.keys.is_empty());
        if let Some(kind) = has_options.filter(|_| !is_name) {
            let command = format!("ddprun schema {table} {}", kind.name);
            text += &format!(
                "\n# The options of one {}, as of {}: `{command}`\n",
                family.noun, kind.name
            );
        }
    }
    text
}

/// One kind with its options, as the table that chooses it.
pub(crate) fn one(family: &FamilySpec, kind: &Spec) -> String {
    let table = match family.lists.first() {
        Some(list) => format!("[[{list}]]"),
        None => format!("[{}]", family.table),
    };
    let about = comment(&format!("{}: {}", kind.name, kind.about));
    let mut text = format!("{about}{table}\nname = \"{}\"\n", kind.name);
    for key in &kind.keys {
        text += &format!("\n{}# {} = {}\n", comment(&meaning(key)), key.name, toml(&key.example));
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

/// What an option means to some kinds, and what it is for each of them where it is not given.
struct Meaning<'a> {
    about: String,
    kinds: Vec<&'a str>,
    /// A sentence about the default, and the kinds that have it.
    defaults: Vec<(String, Vec<&'a str>)>,
}

impl Meaning<'_> {
    fn paragraph(&self) -> String {
        let defaults = match &self.defaults[..] {
            [(default, _)] => default.clone(),
            several => {
                let given = several.iter().filter(|(default, _)| !default.is_empty());
                let of_kinds = |(default, kinds): &(String, Vec<&str>)| {
                    let value = default.trim_start_matches("Default: ").trim_end_matches('.');
                    format!("{value} ({})", kinds.join(", "))
                };
                format!("Default: {}.", given.map(of_kinds).collect::<Vec<_>>().join(", "))
            }
        };
        comment(&format!("{}: {} {defaults}", self.kinds.join(", "), self.about))
    }
}

/// What the option means to each kind that has it: kinds to which it means the same share a
/// paragraph, also where its default differs.
fn option(family: &FamilySpec, name: &str) -> String {
    let mut meanings: Vec<Meaning<'_>> = Vec::new();
    let mut example = None;
    for kind in &family.kinds {
        let Some(key) = kind.key(name) else { continue };
        example.get_or_insert(&key.example);
        let about = key.about.clone() + &inside(key);
        let (default, is_same) = (default(key), |meaning: &Meaning<'_>| {
            let is_required = meaning.defaults.iter().any(|(default, _)| default == REQUIRED);
            meaning.about == about && is_required == key.required
        });
        let at = meanings.iter().position(is_same);
        let at = at.unwrap_or_else(|| {
            meanings.push(Meaning { about, kinds: Vec::new(), defaults: Vec::new() });
            meanings.len() - 1
        });
        let Meaning { kinds, defaults, .. } = &mut meanings[at];
        kinds.push(kind.name);
        match defaults.iter_mut().find(|(other, _)| *other == default) {
            Some((_, kinds)) => kinds.push(kind.name),
            None => defaults.push((default, vec![kind.name])),
        }
    }
    let paragraphs = meanings.iter().map(Meaning::paragraph);
    let example = example.map(toml).unwrap_or_default();
    format!("\n{}# {name} = {example}\n", paragraphs.collect::<String>())
}

fn meaning(key: &Key) -> String {
    format!("{}{} {}", key.about, inside(key), default(key))
}

/// "Default: 0.1."
fn default(key: &Key) -> String {
    match (&key.default, key.required) {
        (Some(default), _) if !default.is_object() => format!("Default: {}.", toml(default)),
        (None, true) => REQUIRED.to_owned(),
        _ => String::new(),
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
