//! Keys that no schema knows, each with the key that was probably meant; and tables that are none.
//!
//! A misspelt key is given its right name after it was reported, so that it has no consequences: `epoch = 3`
//! is one problem, not also a run without a length.

use std::collections::BTreeMap;

use figment::value::{Dict, Value};

use crate::config::keys::{self, KNOWN, Known, dotted};
use crate::config::layer::{Layer, Source};
use crate::config::meant::{among, anywhere, of_layer, only_leaf, whole};
use crate::config::problem::Problem;
use crate::config::spans::Path;
use crate::config::suggest::any_of;

/// Unknown keys that are reported one by one.
const MOST: usize = 60;

/// Something at a place where it cannot be.
#[derive(Default)]
struct Misfit {
    path: Path,
    what: String,
    help: String,
    /// The key that was meant beside it.
    meant: Option<String>,
    /// Whether it must be a table whose `name` says of what kind it is.
    has_name: bool,
}

/// Reports what no schema knows in `layer`, and leaves only what may be.
pub(crate) fn weed(layer: &mut Layer, order: usize) -> Vec<Problem> {
    let mut misfits = Vec::new();
    if let Known::Table(keys) = &*KNOWN {
        walk(&layer.dict, keys, &mut Path::new(), &mut misfits);
    }
    let problem = |misfit: &Misfit| {
        layer.at_key(&misfit.path, misfit.what.clone(), order).help(remedy(layer, misfit))
    };
    // A word is told at once what it should be.
    let most = if is_word(layer) { 1 } else { MOST };
    let mut problems: Vec<Problem> = misfits.iter().take(most).map(problem).collect();
    if let Some(more) = misfits.len().checked_sub(MOST).filter(|&more| more > 0) {
        problems
            .push(Problem::new("", format!("{more} more keys of {} are unknown", layer.source)));
    }
    // What is inside another first: its path holds the other's wrong name.
    for misfit in misfits.iter().rev() {
        mend(layer, misfit);
    }
    problems
}

/// Whether the layer is one key and its value.
fn is_word(layer: &Layer) -> bool {
    matches!(layer.source, Source::CommandLine(_) | Source::Environment(_))
}

/// What to write instead; an override and a variable are told their whole key.
fn remedy(layer: &Layer, misfit: &Misfit) -> String {
    let is_word = is_word(layer);
    let name = dotted(&misfit.path);
    match layer.get(&misfit.path) {
        Some(Value::String(_, kind)) if is_word && misfit.has_name => {
            format!("did you mean `{name}.name={kind}`?")
        }
        value if is_word && misfit.meant.is_some() => {
            let key = whole(&only_leaf(&misfit.path, value));
            key.map_or_else(|| misfit.help.clone(), |key| format!("did you mean `{key}`?"))
        }
        _ => misfit.help.clone(),
    }
}

/// The misfit that the key at `path` is, if it is none of the schema's.
pub(crate) fn unknown(layer: &Layer, path: &[String], order: usize) -> Option<Problem> {
    let mut known = &*KNOWN;
    for (depth, key) in path.iter().enumerate() {
        known = match known {
            Known::Table(keys) => {
                let Some(inner) = keys.get(key) else {
                    let misfit = unknown_key(key, keys, &path[..depth]);
                    let help = whole(path).map(|key| format!("did you mean `{key}`?"));
                    let problem = layer.at_key(&path[..=depth], misfit.what, order);
                    return Some(problem.help(help.unwrap_or(misfit.help)));
                };
                inner
            }
            Known::Each(inner) => inner,
            Known::List(_) | Known::Nested | Known::Anything | Known::Leaf => return None,
        };
    }
    None
}

fn mend(layer: &mut Layer, misfit: &Misfit) {
    let parent = &misfit.path[..misfit.path.len() - 1];
    let free = |layer: &mut Layer, name: &str| {
        layer.table_mut(parent).is_some_and(|table| !table.contains_key(name))
    };
    match &misfit.meant {
        Some(name) if free(layer, name) => layer.rename(&misfit.path, name),
        _ => {
            if !layer.remove(&misfit.path) {
                // An element of a list: its neighbours must keep their numbers.
                if let (Some(value), Some(example)) =
                    (layer.get_mut(&misfit.path), keys::example(&misfit.path))
                {
                    *value = example;
                }
            }
        }
    }
}

fn walk(dict: &Dict, keys: &BTreeMap<String, Known>, path: &mut Path, found: &mut Vec<Misfit>) {
    for (key, value) in dict {
        path.push(key.clone());
        match keys.get(key) {
            None => {
                // Those past the most are only counted.
                let misfit = if found.len() < MOST {
                    in_layer(unknown_key(key, keys, &path[..path.len() - 1]), dict)
                } else {
                    Misfit { path: path.clone(), ..Misfit::default() }
                };
                let meant = misfit.meant.as_ref().and_then(|name| keys.get(name));
                found.push(misfit);
                if let Some(table @ Known::Table(_)) = meant {
                    fit(value, table, path, found);
                }
            }
            Some(Known::Nested) => fit_list(value, path, found, |item, path, found| {
                fit_table(item, keys, path, found);
            }),
            Some(known) => fit(value, known, path, found),
        }
        path.pop();
    }
}

fn fit(value: &Value, known: &Known, path: &mut Path, found: &mut Vec<Misfit>) {
    match (known, value) {
        (Known::Leaf, _) | (Known::Anything, Value::Dict(..)) => {}
        (Known::Table(keys), _) => fit_table(value, keys, path, found),
        (Known::Each(inner), Value::Dict(_, dict)) => {
            for (key, value) in dict {
                path.push(key.clone());
                fit(value, inner, path, found);
                path.pop();
            }
        }
        (Known::List(inner), _) => {
            fit_list(value, path, found, |item, path, found| fit(item, inner, path, found));
        }
        (Known::Each(_) | Known::Anything | Known::Nested, _) => found.push(no_table(path)),
    }
}

fn fit_table(
    value: &Value,
    keys: &BTreeMap<String, Known>,
    path: &mut Path,
    found: &mut Vec<Misfit>,
) {
    match value {
        Value::Dict(_, dict) => walk(dict, keys, path, found),
        _ => found.push(Misfit { has_name: keys.contains_key("name"), ..no_table(path) }),
    }
}

fn fit_list(
    value: &Value,
    path: &mut Path,
    found: &mut Vec<Misfit>,
    fit_item: impl Fn(&Value, &mut Path, &mut Vec<Misfit>),
) {
    let Value::Array(_, items) = value else {
        let help = format!("begin each with `[[{}]]`", dotted(path));
        let what = "must be a list of tables".to_owned();
        found.push(Misfit { path: path.clone(), what, help, ..Misfit::default() });
        return;
    };
    for (index, item) in items.iter().enumerate() {
        path.push(index.to_string());
        fit_item(item, path, found);
        path.pop();
    }
}

fn no_table(path: &[String]) -> Misfit {
    let name = dotted(path);
    let help = if name.ends_with(']') {
        "write `{ name = \"...\", ... }`".to_owned()
    } else {
        format!("begin it with `[{name}]`")
    };
    Misfit { path: path.to_vec(), what: "must be a table".to_owned(), help, ..Misfit::default() }
}

fn unknown_key(key: &str, keys: &BTreeMap<String, Known>, parent: &[String]) -> Misfit {
    let mut path = parent.to_vec();
    path.push(key.to_owned());
    let meant = among(key, keys.keys().map(String::as_str)).map(str::to_owned);
    let help = match &meant {
        Some(name) => format!("did you mean `{name}`?"),
        None if parent.is_empty() && ["base", "sweep"].contains(&key) => {
            "a file with `base` and `[sweep]` is run by `ddprun sweep`".to_owned()
        }
        None => elsewhere(key, parent).unwrap_or_else(|| {
            let names = any_of(keys.keys().map(String::as_str));
            match parent {
                [] => format!("the file may hold {names}"),
                _ => format!("`{}` may hold {names}", dotted(parent)),
            }
        }),
    };
    let what = "is not a key of an experiment".to_owned();
    Misfit { path, what, help, meant, has_name: false }
}

/// Where else a key of this name, or nearly this name, is found; what an entry of a list lacks is nowhere else.
fn elsewhere(key: &str, parent: &[String]) -> Option<String> {
    let is_entry = parent.iter().any(|part| part.parse::<usize>().is_ok());
    let found = if is_entry { Vec::new() } else { anywhere(key) };
    let names = any_of(found.iter().map(String::as_str));
    (!found.is_empty()).then(|| format!("did you mean {names}?"))
}

/// A layer is told what its own kind takes.
fn in_layer(misfit: Misfit, layer: &Dict) -> Misfit {
    match layer.get("name").and_then(Value::as_str) {
        Some(kind)
            if misfit.meant.is_none()
                && misfit.path.get(1).is_some_and(|list| list == "layers") =>
        {
            Misfit { help: of_layer(kind), ..misfit }
        }
        _ => misfit,
    }
}
