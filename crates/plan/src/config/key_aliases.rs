//! Names of keys in other programs -> ddprun's own.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use figment::value::Value as Given;
use serde_json::Value;

use crate::config::keys::{KeyTree, Page, dotted};
use crate::config::kind::Spec;
use crate::config::schema::DECLARED;
use crate::config::spans::Path;
use crate::config::suggest::{any_of, closest};
use crate::config::table::keys_of;

/// Words of other programs for options of kinds, and for what chooses one.
const ALIASES: [(&str, &str); 6] = [
    ("wd", "weight_decay"),
    ("kind", "name"),
    ("type", "name"),
    ("subset", "config_name"),
    ("split", "train_split"),
    ("validation_split", "val_split"),
];

/// Words of other programs -> ours.
static DECLARED_ALIASES: LazyLock<BTreeMap<&str, &str>> = LazyLock::new(|| {
    let mut found = BTreeMap::from(ALIASES);
    aliases(&DECLARED, &mut found);
    found
});

/// Collects names of keys in other programs: `extend("x-aliases" = [...])`.
fn aliases<'a>(schema: &'a Value, found: &mut BTreeMap<&'a str, &'a str>) {
    for (key, inner) in keys_of(schema).into_iter().flatten() {
        let words = inner["x-aliases"].as_array().into_iter().flatten();
        found.extend(words.filter_map(|word| Some((word.as_str()?, key.as_str()))));
        aliases(inner, found);
        aliases(&inner["items"], found);
    }
}

fn alias(word: &str) -> Option<&'static str> {
    DECLARED_ALIASES.get(word).copied()
}

/// The one of `names` that `word` stands for, if one is near enough.
pub(crate) fn among<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let names: Vec<&str> = names.collect();
    let ours = alias(word).and_then(|ours| names.iter().find(|name| **name == ours).copied());
    ours.or_else(|| closest(word, names.iter().copied()))
}

/// Dotted names of the keys called `word`, or nearly so, whatever table they are in.
pub(crate) fn anywhere(word: &str, page: &Page) -> Vec<String> {
    let last = |dotted: &str| dotted.rsplit('.').next().unwrap_or(dotted).to_owned();
    let all = page.all();
    let called = |word: &str| -> Vec<String> {
        all.iter().filter(|dotted| last(dotted) == word).cloned().collect()
    };
    for word in std::iter::once(word).chain(alias(word)) {
        let exact = called(word);
        if !exact.is_empty() {
            return exact;
        }
    }
    let names: Vec<String> = all.iter().map(|dotted| last(dotted)).collect();
    closest(word, names.iter().map(String::as_str)).map(called).unwrap_or_default()
}

/// The key that the flag `--word` of another program stands for, or nearly so: `batch-size` is
/// `train.batch_size`.
pub(crate) fn of_flag(word: &str, page: &Page) -> Option<String> {
    let word = word.replace('-', "_");
    if word.contains('.') {
        return whole(&word.split('.').map(str::to_owned).collect::<Path>(), page);
    }
    let mut found = anywhere(&word, page);
    let mut tables = ["train.", "optimizer."].iter();
    let first = tables.find_map(|table| found.iter().position(|key| key.starts_with(table)));
    let is_in_list =
        |key: &str| ["model.layers.", "data.transforms."].iter().any(|list| key.starts_with(list));
    match (first, found.len()) {
        (Some(first), _) => Some(found.swap_remove(first)),
        (None, 1) => found.pop().filter(|key| !is_in_list(key)),
        (None, _) => None,
    }
}

/// The whole key that was meant by `path`: `trian.epohcs` is `train.epochs`; `None` where a part is
/// like no key there.
pub(crate) fn whole(path: &[String], page: &Page) -> Option<String> {
    let mut known = page.known();
    let mut right = Path::new();
    for part in path {
        let name = match known {
            KeyTree::Table(keys) | KeyTree::Open(keys) => {
                let name = among(part, keys.keys().map(String::as_str))?;
                known = keys.get(name)?;
                name
            }
            KeyTree::Each(inner) => {
                known = inner;
                part
            }
            KeyTree::Leaf | KeyTree::List(_) | KeyTree::Nested => return None,
        };
        right.push(name.to_owned());
    }
    matches!(known, KeyTree::Leaf).then(|| dotted(&right))
}

/// `path`, and further into `value` as long as there is one way: what an override names.
pub(crate) fn only_leaf(path: &[String], mut value: Option<&Given>) -> Path {
    let mut path = path.to_vec();
    while let Some(Given::Dict(_, dict)) = value
        && let (Some((key, inner)), 1) = (dict.iter().next(), dict.len())
    {
        path.push(key.clone());
        value = Some(inner);
    }
    path
}

/// A remedy that names the keys of an entry of this kind.
pub(crate) fn of_entry(kind: &Spec) -> String {
    match any_of(kind.keys.iter().map(|key| key.name.as_str())) {
        none if none.is_empty() => format!("remove it: `{}` takes no keys", kind.name),
        keys => format!("use one of the keys of `{}`: {keys}", kind.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_of_another_program_is_the_key_of_that_name() {
        let check = |word: &str, key: Option<&str>| {
            assert_eq!(of_flag(word, &Page::new(&[])).as_deref(), key, "{word}");
        };
        check("epochs", Some("train.epochs"));
        check("lr", Some("optimizer.lr"));
        check("learning-rate", Some("optimizer.lr"));
        check("batch-size", Some("train.batch_size"));
        check("batch_size", Some("train.batch_size"));
        check("gpus", Some("distributed.devices"));
        check("optimizer.lr", Some("optimizer.lr"));
        check("optimiser.lr", Some("optimizer.lr"));
        check("epoch", Some("train.epochs"));
        check("seed", Some("experiment.seed"));
        check("zzzzzzzz", None);
        check("causal", None);
    }

    #[test]
    fn each_part_of_a_key_may_be_misspelt() {
        let check = |written: &str, key: Option<&str>| {
            let path: Path = written.split('.').map(str::to_owned).collect();
            assert_eq!(whole(&path, &Page::new(&[])).as_deref(), key, "{written}");
        };
        check("trian.epohcs", Some("train.epochs"));
        check("optimizer.learning_rate", Some("optimizer.lr"));
        check("trian", None);
        check("trian.banana", None);
    }
}
