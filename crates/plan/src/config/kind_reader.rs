//! A kind that a file other than an experiment chooses, and its options: read, completed with
//! defaults, and checked with carets.

use figment::error::Kind as ErrorKind;
use figment::value::{Dict, Value};

use crate::config::check::{Finding, range};
use crate::config::keys::path_of;
use crate::config::kind::{Choice, FamilySpec, Key, Options, Spec};
use crate::config::reader::{Reader, join, json};
use crate::config::suggest::any_of;
use crate::config::wording;

/// The kind that the word at `name` chooses, with its options from `table`; `usual` if there is no
/// word.
pub(crate) fn choice(
    reader: &mut Reader,
    family: &str,
    name: &[String],
    usual: &str,
    table: &[String],
) -> Choice {
    let Some(family) = reader.vocabulary.family(family).cloned() else {
        let given = given(reader, name, table);
        let name = reader.text(name).unwrap_or_else(|| usual.to_owned());
        let options = given.iter().map(|(key, value)| (key.clone(), json(value))).collect();
        return Choice { name, options };
    };
    let words: Vec<(&str, &Spec)> = family.kinds.iter().map(|kind| (kind.name, kind)).collect();
    let is_named = reader.get(name).is_some();
    let kind = if is_named { reader.word(name, &words) } else { family.kind(usual) };
    // Without a known name it cannot be said which options are right.
    let Some(kind) = kind else { return plain(usual) };
    Choice { name: kind.name.to_owned(), options: options(reader, &family, kind, name, table) }
}

/// A kind without options.
pub(crate) fn plain(name: &str) -> Choice {
    Choice { name: name.to_owned(), options: Options::new() }
}

/// What the layers say in `table`, but for the word at `name`.
fn given(reader: &Reader, name: &[String], table: &[String]) -> Dict {
    let value = |key: String| {
        let at = join(table, &key);
        let value = reader.get(&at).cloned()?;
        (at != name).then_some((key, value))
    };
    reader.keys(table).into_iter().filter_map(value).collect()
}

/// The options of `kind`, of which the wrong ones are reported and replaced by their defaults.
fn options(
    reader: &mut Reader,
    family: &FamilySpec,
    kind: &Spec,
    name: &[String],
    table: &[String],
) -> Options {
    let mut own = given(reader, name, table);
    let word = name.last().map_or("name", String::as_str);
    foreign(reader, family, kind, (word, table), &own);
    own.retain(|key, _| kind.key(key).is_some());
    let n_before = reader.problems.len();
    let read = loop {
        match kind.read(&own) {
            Ok(options) => break options,
            Err(error) if mend(reader, kind, table, &mut own, &error) => {}
            Err(_) => return Options::new(),
        }
    };
    for Key { name, schema, .. } in &kind.keys {
        if let Some(value) = own.get(name) {
            let mut found = Vec::new();
            range(name, value, schema, &mut found);
            for Finding { key, what, help, .. } in found {
                let problem = reader.problem(&[table, &path_of(&key)[..]].concat(), what);
                reader.problems.push(match help {
                    Some(help) => problem.help(help),
                    None => problem,
                });
            }
        }
    }
    if reader.problems.len() == n_before {
        for wrong in kind.check(&read) {
            reader.wrong(&join(table, wrong.key), wrong.what);
        }
    }
    read
}

/// Reports keys of a table that are no options of `kind`, which its key `word` names.
fn foreign(
    reader: &mut Reader,
    family: &FamilySpec,
    kind: &Spec,
    (word, table): (&str, &[String]),
    own: &Dict,
) {
    let is_foreign = |key: &&String| kind.key(key).is_none() && family.owners(key).next().is_some();
    let mut others = vec![word];
    for key in own.keys().filter(is_foreign) {
        let owners = any_of(family.owners(key));
        let what = format!("belongs to {owners}, but `{word}` is `{}`", kind.name);
        reader.wrong(&join(table, key), what);
        others.push(key);
    }
    let options: Vec<&str> = kind.keys.iter().map(|key| key.name.as_str()).collect();
    reader.only_of(table, &others, &options);
}

/// Reports an option that is missing or of the wrong type, and makes it right; whether that could
/// be done.
fn mend(
    reader: &mut Reader,
    kind: &Spec,
    table: &[String],
    own: &mut Dict,
    error: &figment::Error,
) -> bool {
    if let ErrorKind::MissingField(field) = &error.kind {
        let Some(key) = kind.key(field) else { return false };
        let example = Value::serialize(&key.example).unwrap_or_else(|_| Value::from(""));
        let help = format!("add it, such as `{field} = {}`", key.example);
        reader.wrong_help(table, format!("`{}` needs `{field}`", kind.name), help);
        return own.insert(key.name.clone(), example).is_none();
    }
    let Some(option) = error.path.first() else { return false };
    let bounds = kind.key(option).and_then(|key| {
        let most = key.schema["maximum"].as_u64().unwrap_or(u64::MAX);
        key.schema["minimum"].as_u64().map(|least| (least, most))
    });
    let (what, help) = wording::describe(&error.kind, &[], bounds);
    let path: Vec<String> = table.iter().chain(&error.path).cloned().collect();
    let problem = reader.problem(&path, what);
    reader.problems.push(match help {
        Some(help) => problem.help(help),
        None => problem,
    });
    own.remove(option).is_some()
}
