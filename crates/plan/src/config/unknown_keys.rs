//! Keys that no schema knows, each with the key that was probably meant; and tables that are none.
//!
//! A misspelt key is given its right name after it was reported, so that it has no consequences:
//! `epoch = 3` is one problem, not also a run without a length.

use std::collections::BTreeMap;

use figment::value::{Dict, Value};

use crate::config::key_aliases::{among, anywhere, of_entry, only_leaf, whole};
use crate::config::keys::{KeyTree, Page, dotted};
use crate::config::kind::{SINKS, Spec};
use crate::config::layer::{Layer, Source};
use crate::config::problem::Problem;
use crate::config::spans::Path;
use crate::config::suggest::any_of;

/// Unknown keys that are reported one by one.
const MAX_REPORTED: usize = 60;

/// The kind that each table chooses, where that is known.
pub(crate) type ChosenKinds<'a> = BTreeMap<&'static str, &'a Spec>;

/// Something at a place where it cannot be.
#[derive(Default)]
struct Misfit {
    path: Path,
    what: String,
    help: String,
    /// The key that was meant beside it.
    meant: Option<String>,
    /// True if it must be a table with the `name` of a component.
    has_name: bool,
}

/// Reports what no schema knows in `layer`, and leaves only what may be.
pub(crate) fn weed(
    layer: &mut Layer,
    order: usize,
    page: &Page,
    chosen: &ChosenKinds<'_>,
) -> Vec<Problem> {
    let mut search = Search { page, chosen, found: Vec::new() };
    if let KeyTree::Table(keys) = page.known() {
        search.walk(&layer.dict, keys, &mut Path::new());
    }
    let misfits = search.found;
    let problem = |misfit: &Misfit| {
        layer.at_key(&misfit.path, misfit.what.clone(), order).help(remedy(layer, misfit, page))
    };
    // A word is told at once what it should be.
    let most = if is_word(layer) { 1 } else { MAX_REPORTED };
    let mut problems: Vec<Problem> = misfits.iter().take(most).map(problem).collect();
    if let Some(more) = misfits.len().checked_sub(MAX_REPORTED).filter(|&more| more > 0) {
        problems
            .push(Problem::new("", format!("{more} more keys of {} are unknown", layer.source)));
    }
    // What is inside another first: its path holds the other's wrong name.
    for misfit in misfits.iter().rev() {
        mend(layer, misfit, page);
    }
    problems
}

/// True if the layer is one key and its value.
fn is_word(layer: &Layer) -> bool {
    matches!(layer.source, Source::CommandLine(_) | Source::Environment(_))
}

/// A remedy: the key to write instead; for overrides and variables the whole key.
fn remedy(layer: &Layer, misfit: &Misfit, page: &Page) -> String {
    let is_word = is_word(layer);
    if let (Source::Environment(_), Some(name)) = (&layer.source, variable(&misfit.path, page)) {
        return format!("put two underscores between the parts of a key: `{name}`");
    }
    let name = dotted(&misfit.path);
    match layer.get(&misfit.path) {
        Some(Value::String(_, kind)) if is_word && misfit.has_name => {
            format!("did you mean `{name}.name={kind}`?")
        }
        value if is_word && misfit.meant.is_some() => {
            let key = whole(&only_leaf(&misfit.path, value), page);
            key.map_or_else(|| misfit.help.clone(), |key| format!("did you mean `{key}`?"))
        }
        _ => misfit.help.clone(),
    }
}

/// The variable of the key whose parts one underscore joins.
fn variable(path: &[String], page: &Page) -> Option<String> {
    let written = path.join("_");
    let key = page.all().into_iter().find(|key| key.replace('.', "_") == written)?;
    Some(format!("DDPRUN_{}", key.replace('.', "__").to_uppercase()))
}

/// A problem if the key at `path` is none of the schema's.
pub(crate) fn unknown(
    layer: &Layer,
    path: &[String],
    order: usize,
    page: &Page,
) -> Option<Problem> {
    let mut known = page.known();
    for (depth, key) in path.iter().enumerate() {
        if let KeyTree::Table(keys) = known
            && !keys.contains_key(key)
        {
            let misfit = unknown_key(key, keys, &path[..depth], page, &ChosenKinds::new());
            let help = whole(path, page).map(|key| format!("did you mean `{key}`?"));
            let problem = layer.at_key(&path[..=depth], misfit.what, order);
            return Some(problem.help(help.unwrap_or(misfit.help)));
        }
        known = known.child(key)?;
    }
    None
}

/// True if `path` leads to a list of tables, or into one.
pub(crate) fn is_in_list(path: &[String], page: &Page) -> bool {
    let mut known = page.known();
    for key in path {
        let Some(inner) = known.child(key) else { break };
        known = inner;
    }
    known.is_list()
}

fn mend(layer: &mut Layer, misfit: &Misfit, page: &Page) {
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
                    (layer.get_mut(&misfit.path), page.example(&misfit.path))
                {
                    *value = example;
                }
            }
        }
    }
}

/// A walk through a file, and what does not belong there.
struct Search<'a> {
    page: &'a Page,
    chosen: &'a ChosenKinds<'a>,
    found: Vec<Misfit>,
}

impl Search<'_> {
    fn walk(&mut self, dict: &Dict, keys: &BTreeMap<String, KeyTree>, path: &mut Path) {
        for (key, value) in dict {
            path.push(key.clone());
            match keys.get(key) {
                Some(known) if !self.is_other_list(key, value, path) => {
                    self.fit(value, known, keys, path);
                }
                _ => self.unknown(key, dict, keys, path),
            }
            path.pop();
        }
    }

    /// True if the value is not a list, but another component than the one that is named has a list
    /// at this key: `layers = 2` of a model that counts its layers.
    fn is_other_list(&self, key: &str, value: &Value, path: &[String]) -> bool {
        let [table, _] = path else { return false };
        let is_list = matches!(value, Value::Array(..));
        let owner = || self.page.owner_of_list(table, key);
        let chosen = self.chosen.get(table.as_str());
        !is_list && chosen.is_some_and(|kind| owner().is_some_and(|owner| owner != kind.name))
    }

    /// A key of `table` that is none of `keys`; where another table was meant, its keys are looked
    /// at too.
    fn unknown(
        &mut self,
        key: &str,
        table: &Dict,
        keys: &BTreeMap<String, KeyTree>,
        path: &mut Path,
    ) {
        // Those past the most are only counted.
        let misfit = if self.found.len() < MAX_REPORTED {
            let parent = &path[..path.len() - 1];
            let misfit = unknown_key(key, keys, parent, self.page, self.chosen);
            in_entry(misfit, table, self.page)
        } else {
            Misfit { path: path.clone(), ..Misfit::default() }
        };
        let meant = misfit.meant.as_ref().and_then(|name| keys.get(name));
        self.found.push(misfit);
        if let (Some(meant @ KeyTree::Table(_)), Some(value)) = (meant, table.get(key)) {
            self.fit(value, meant, keys, path);
        }
    }

    /// `value` where `known` belongs; `siblings` are the keys beside it.
    fn fit(
        &mut self,
        value: &Value,
        known: &KeyTree,
        siblings: &BTreeMap<String, KeyTree>,
        path: &mut Path,
    ) {
        match (known, value) {
            (KeyTree::Leaf, _) => {}
            (KeyTree::Table(keys), _) => self.fit_table(value, keys, path),
            (KeyTree::Open(keys), Value::Dict(_, dict)) => {
                for (key, value) in dict {
                    let Some(known) = keys.get(key) else { continue };
                    path.push(key.clone());
                    self.fit(value, known, keys, path);
                    path.pop();
                }
            }
            (KeyTree::Each(inner), Value::Dict(_, dict)) => {
                for (key, value) in dict {
                    path.push(key.clone());
                    self.fit(value, inner, siblings, path);
                    path.pop();
                }
            }
            (KeyTree::List(inner), _) => self.fit_list(value, path, |search, item, path| {
                search.fit(item, inner, siblings, path);
            }),
            (KeyTree::Nested, _) => self.fit_list(value, path, |search, item, path| {
                search.fit_table(item, siblings, path);
            }),
            (KeyTree::Open(_) | KeyTree::Each(_), _) => {
                self.found.push(no_table(path));
            }
        }
    }

    fn fit_table(&mut self, value: &Value, keys: &BTreeMap<String, KeyTree>, path: &mut Path) {
        if let Value::Dict(_, dict) = value {
            self.walk(dict, keys, path);
        } else {
            let has_name = keys.contains_key("name");
            self.found.push(Misfit { has_name, ..no_table(path) });
        }
    }

    fn fit_list(
        &mut self,
        value: &Value,
        path: &mut Path,
        fit_item: impl Fn(&mut Self, &Value, &mut Path),
    ) {
        let Value::Array(_, items) = value else {
            let list = dotted(path);
            let (what, help) = if list == SINKS {
                ("must be a list of names", "write `[\"jsonl\", \"csv\"]`".to_owned())
            } else {
                ("must be a list of tables", format!("begin each with `[[{list}]]`"))
            };
            let what = what.to_owned();
            self.found.push(Misfit { path: path.clone(), what, help, ..Misfit::default() });
            return;
        };
        for (index, item) in items.iter().enumerate() {
            path.push(index.to_string());
            fit_item(self, item, path);
            path.pop();
        }
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

fn unknown_key(
    key: &str,
    keys: &BTreeMap<String, KeyTree>,
    parent: &[String],
    page: &Page,
    chosen: &ChosenKinds<'_>,
) -> Misfit {
    let mut path = parent.to_vec();
    path.push(key.to_owned());
    let what = "is not a key of an experiment".to_owned();
    let near = among(key, keys.keys().map(String::as_str)).map(str::to_owned);
    let kind = if let [table] = parent { chosen.get(table.as_str()) } else { None };
    let meant = match kind {
        // A key of another kind would only be the next problem.
        Some(kind) if near.as_deref().is_some_and(|near| !takes(kind, &parent[0], near, page)) => {
            let own = kind.keys.iter().map(|key| key.name.as_str());
            let shared = page.shared(&parent[0]).into_iter().flatten().map(String::as_str);
            let shared = shared.filter(|key| takes(kind, &parent[0], key, page));
            let meant = among(key, own.chain(shared)).map(str::to_owned);
            if meant.is_none() {
                let help = of_table(kind, &parent[0], page);
                return Misfit { path, what, help, ..Misfit::default() };
            }
            meant
        }
        _ => near,
    };
    let help = match &meant {
        Some(name) if name == "zero_stage" => {
            format!("did you mean `{name}`, which is 0, 1 (optimizer state) or 2 (gradients too)?")
        }
        Some(name) if name == "lr_factor" => {
            format!("did you mean `{name}`, which multiplies the learning rate?")
        }
        Some(name) => format!("did you mean `{name}`?"),
        None if parent.is_empty() && ["base", "sweep"].contains(&key) => {
            "run it with `ddprun sweep`, or remove `base` and `[sweep]`".to_owned()
        }
        None => elsewhere(key, parent, page).unwrap_or_else(|| {
            let names = any_of(keys.keys().map(String::as_str));
            match (parent, kind) {
                ([], _) => format!("use one of the keys {names}"),
                ([table], Some(kind)) => of_table(kind, table, page),
                _ => format!("use one of the keys of `{}`: {names}", dotted(parent)),
            }
        }),
    };
    Misfit { path, what, help, meant, has_name: false }
}

/// The keys of a table that names `kind`: its own, then those of all kinds.
fn of_table(kind: &Spec, table: &str, page: &Page) -> String {
    let shared = page.shared(table).into_iter().flatten().map(String::as_str);
    let names = any_of(shared.filter(|key| *key != "name" && takes(kind, table, key, page)));
    match (kind.keys.is_empty(), names.is_empty()) {
        (_, true) => of_entry(kind),
        (true, false) => format!("use one of the keys of `{table}`: {names}"),
        (false, false) => format!("{}; or of `{table}`: {names}", of_entry(kind)),
    }
}

/// True if `key` of `table` belongs to `kind`, or to all kinds.
fn takes(kind: &Spec, table: &str, key: &str, page: &Page) -> bool {
    let is_shared = || page.shared(table).is_none_or(|shared| shared.contains(key));
    match page.owner_of_list(table, key) {
        Some(owner) => owner == kind.name,
        None => kind.key(key).is_some() || is_shared(),
    }
}

/// A hint to another table that has a key of this name, or nearly this name; none for entries of
/// lists.
fn elsewhere(key: &str, parent: &[String], page: &Page) -> Option<String> {
    let is_entry = parent.iter().any(|part| part.parse::<usize>().is_ok());
    let found = if is_entry { Vec::new() } else { anywhere(key, page) };
    let names = any_of(found.iter().map(String::as_str));
    (!found.is_empty()).then(|| format!("did you mean {names}?"))
}

/// An entry of a list is told what its own kind takes.
fn in_entry(misfit: Misfit, entry: &Dict, page: &Page) -> Misfit {
    let Some(name) = entry.get("name").and_then(Value::as_str) else { return misfit };
    if misfit.meant.is_some() {
        return misfit;
    }
    match page.kind_in_list(&misfit.path, name) {
        Some(kind) => Misfit { help: of_entry(kind), ..misfit },
        None => misfit,
    }
}
