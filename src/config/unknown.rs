//! Keys that no schema knows, each with the key that was probably meant; and tables that are none.
//!
//! A misspelt key is given its right name after it was reported, so that it has no consequences: `epoch = 3`
//! is one problem, not also a run without a length.

use std::collections::BTreeMap;

use figment::value::{Dict, Value};

use crate::config::keys::{self, KNOWN, Known, dotted};
use crate::config::layer::Layer;
use crate::config::problem::Problem;
use crate::config::spans::Path;
use crate::config::suggest::{any_of, closest};

/// Words of other programs -> ours.
const ALIASES: [(&str, &str); 9] = [
    ("learning_rate", "lr"),
    ("kind", "name"),
    ("type", "name"),
    ("num_epochs", "epochs"),
    ("max_epochs", "epochs"),
    ("max_steps", "steps"),
    ("num_gpus", "devices"),
    ("gpus", "devices"),
    ("accumulate_grad_batches", "gradient_accumulation_steps"),
];

/// Unknown keys that are reported one by one.
const MOST: usize = 60;

/// Something at a place where it cannot be.
struct Misfit {
    path: Path,
    what: String,
    help: String,
    meant: Option<String>,
}

/// Reports what no schema knows in `layer`, and leaves only what may be.
pub(crate) fn weed(layer: &mut Layer, order: usize) -> Vec<Problem> {
    let mut misfits = Vec::new();
    if let Known::Table(keys) = &*KNOWN {
        walk(&layer.dict, keys, &mut Path::new(), &mut misfits);
    }
    let problem = |misfit: &Misfit| {
        layer.at_key(&misfit.path, misfit.what.clone(), order).help(misfit.help.clone())
    };
    let mut problems: Vec<Problem> = misfits.iter().take(MOST).map(problem).collect();
    if let Some(more) = misfits.len().checked_sub(MOST).filter(|&more| more > 0) {
        problems
            .push(Problem::new("", format!("{more} more keys of {} are unknown", layer.source)));
    }
    for misfit in misfits {
        mend(layer, &misfit);
    }
    problems
}

/// The misfit that the key at `path` is, if it is none of the schema's.
pub(crate) fn unknown(layer: &Layer, path: &[String], order: usize) -> Option<Problem> {
    let mut known = &*KNOWN;
    for (depth, key) in path.iter().enumerate() {
        known = match known {
            Known::Table(keys) => {
                let Some(inner) = keys.get(key) else {
                    let misfit = unknown_key(key, keys, &path[..depth]);
                    let problem = layer.at_key(&path[..=depth], misfit.what, order);
                    return Some(problem.help(misfit.help));
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
                path.pop();
                found.push(if found.len() < MOST {
                    unknown_key(key, keys, path)
                } else {
                    // Nobody reads its suggestion.
                    let path = path.iter().cloned().chain([key.clone()]).collect();
                    Misfit { path, what: String::new(), help: String::new(), meant: None }
                });
                continue;
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
        _ => found.push(no_table(path)),
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
        found.push(Misfit { path: path.clone(), what, help, meant: None });
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
    Misfit { path: path.to_vec(), what: "must be a table".to_owned(), help, meant: None }
}

fn unknown_key(key: &str, keys: &BTreeMap<String, Known>, parent: &[String]) -> Misfit {
    let mut path = parent.to_vec();
    path.push(key.to_owned());
    let alias = ALIASES.iter().find(|(other, ours)| *other == key && keys.contains_key(*ours));
    let meant = alias
        .map(|(_, ours)| *ours)
        .or_else(|| closest(key, keys.keys().map(String::as_str)))
        .map(str::to_owned);
    let help = match &meant {
        Some(name) => format!("did you mean `{name}`?"),
        None if parent.is_empty() && ["base", "sweep"].contains(&key) => {
            "a file with `base` and `[sweep]` is run by `ddprun sweep`".to_owned()
        }
        None => elsewhere(key).unwrap_or_else(|| {
            let names = any_of(keys.keys().map(String::as_str));
            match parent {
                [] => format!("the file may hold {names}"),
                _ => format!("`{}` may hold {names}", dotted(parent)),
            }
        }),
    };
    Misfit { path, what: "is not a key of an experiment".to_owned(), help, meant }
}

/// Where else a key of this name, or nearly this name, lives.
fn elsewhere(key: &str) -> Option<String> {
    let all = keys::all();
    let last = |dotted: &str| dotted.rsplit('.').next().unwrap_or(dotted).to_owned();
    let ours = ALIASES.iter().find(|(other, _)| *other == key).map_or(key, |(_, ours)| ours);
    let exact: Vec<&str> =
        all.iter().map(String::as_str).filter(|dotted| last(dotted) == ours).collect();
    if !exact.is_empty() {
        return Some(format!("did you mean {}?", any_of(exact)));
    }
    let names: Vec<String> = all.iter().map(|dotted| last(dotted)).collect();
    let near = closest(key, names.iter().map(String::as_str))?;
    let whole = all.iter().find(|dotted| last(dotted) == near)?;
    Some(format!("did you mean `{whole}`?"))
}
