//! The reference page with the options of all kinds.

use serde_json::Value;

use crate::config::kind::{ENTRY, FamilySpec, Key, Spec, example};
use crate::config::table::{OPTIONS, each_of, keys_of};

/// Instead of a default.
const REQUIRED: &str = "Required.";
/// Keys of a table that choose a kind.
const CHOICES: [&str; 2] = ["name", "kind"];
/// Columns of the page.
const WIDTH: usize = 118;

/// The keys of a file with this schema, with the kinds of each family and their options.
pub(crate) fn page(schema: &Value, families: &[FamilySpec]) -> String {
    Page::write(schema, families, true)
}

/// The reference page with the kinds of each family, but without their options.
pub(crate) fn index(schema: &Value, families: &[FamilySpec]) -> String {
    Page::write(schema, families, false)
}

/// A page as it is written.
struct Page<'a> {
    families: &'a [FamilySpec],
    has_options: bool,
    text: String,
}

impl<'a> Page<'a> {
    fn write(schema: &Value, families: &'a [FamilySpec], has_options: bool) -> String {
        let mut page = Self { families, has_options, text: comments(schema) };
        page.table("", schema);
        page.text
    }

    /// The keys of the table at `path`, then the tables in it.
    fn table(&mut self, path: &str, schema: &Value) {
        let name =
            |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        let keys = || keys_of(schema).into_iter().flatten();
        let is_table = |schema: &Value| keys_of(schema).is_some() || each_of(schema).is_some();
        let chooses = keys().any(|(key, _)| key == OPTIONS);
        for (key, schema) in keys().filter(|(key, schema)| *key == OPTIONS || !is_table(schema)) {
            if key == OPTIONS {
                self.options(path);
                continue;
            }
            let table = if chooses && CHOICES.contains(&&**key) { path } else { "" };
            self.text.push('\n');
            self.key(key, &name(key), schema, table);
        }
        for (key, schema) in keys().filter(|(key, schema)| *key != OPTIONS && is_table(schema)) {
            let name = name(key);
            // Tables with names of the user's own.
            if let Some(inner) = each_of(schema).filter(|_| schema.get("examples").is_none()) {
                self.text += &format!("\n[{name}.NAME]\n{}", comments(inner));
                self.table(&name, inner);
                continue;
            }
            self.text += &format!("\n[{name}]\n{}", comments(schema));
            let examples = schema["examples"][0].as_object().into_iter().flatten();
            for (key, value) in examples {
                self.text += &format!("\n# \"{key}\" = {}\n", toml(value));
            }
            self.table(&name, schema);
        }
    }

    /// One key, which chooses a kind of the family of `table` if there is one.
    fn key(&mut self, key: &str, name: &str, schema: &Value, table: &str) {
        self.text += &comments(schema);
        let mut families = self.families.iter();
        let chooses = |it: &&FamilySpec| it.table == name || it.table == table;
        let chosen = families.find(|it| it.lists.is_empty() && chooses(it));
        if let Some(family) = chosen {
            self.text += &names(family);
        }
        if let Some(inner) = keys_of(&schema["items"]) {
            self.text += &format!("# [[{name}]]\n");
            for (key, schema) in inner {
                let value = toml(&example(schema, None));
                self.text += &format!("{}# {key} = {value}\n", comments(schema));
            }
            return;
        }
        match schema.get("default") {
            Some(default) => self.text += &format!("{key} = {}\n", toml(default)),
            None if schema["items"].get(ENTRY).is_some() => {}
            None => self.text += &format!("# {key} = {}\n", toml(&example(schema, None))),
        }
        if chosen.is_some_and(|family| family.table == name) {
            self.options(name);
        }
        if let Some(family) = self.families.iter().find(|it| it.lists.last() == Some(&name)) {
            self.list(family);
        }
    }

    /// The options of the family that `table` chooses among.
    fn options(&mut self, table: &str) {
        let Some(family) = self.families.iter().find(|family| family.table == table) else {
            return;
        };
        if self.has_options {
            self.text += &options(family);
        } else {
            self.text += &command(family);
        }
    }

    fn list(&mut self, family: &FamilySpec) {
        self.text +=
            &if self.has_options { entries(family) } else { names(family) + &command(family) };
    }
}

/// The command that shows the options of a family's kinds.
fn command(family: &FamilySpec) -> String {
    let Some(kind) = family.kinds.iter().find(|kind| !kind.keys.is_empty()) else {
        return String::new();
    };
    let (noun, table, name) = (family.noun, family.table, kind.name);
    format!("\n# The options of one {noun}, as of {name}: `ddprun schema {table} {name}`\n")
}

/// The meaning of a key or table as comment lines: paragraphs, and lists of lines.
fn comments(schema: &Value) -> String {
    let mut blocks: Vec<String> = Vec::new();
    for line in schema["description"].as_str().unwrap_or_default().lines() {
        let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_item = line.starts_with("- ") || number.starts_with(". ") && number != line;
        match blocks.last_mut() {
            Some(block) if !block.is_empty() && !line.is_empty() && !is_item => {
                *block = format!("{block} {}", line.trim_start());
            }
            _ => blocks.push(line.to_owned()),
        }
    }
    blocks.iter().map(|block| comment(block)).collect()
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

/// A meaning of an option that some kinds share, and its default for each of them.
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

/// The meaning of the option for each kind that has it. Kinds with the same meaning share a
/// paragraph, even if the default differs.
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

/// The meanings of the keys of an option that is a table.
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
        let quoted = |key: &str| {
            if key.contains('.') { format!("\"{key}\"") } else { key.to_owned() }
        };
        let keys = keys.iter().map(|(key, value)| format!("{} = {}", quoted(key), toml(value)));
        return format!("{{ {} }}", keys.collect::<Vec<_>>().join(", "));
    }
    toml::Value::try_from(value).map_or_else(|_| value.to_string(), |value| value.to_string())
}
