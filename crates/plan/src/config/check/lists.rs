//! Entries of lists, each of which chooses a kind: whose options are whose, what they may be, and
//! the rules between them.

use figment::value::{Dict, Value};

use crate::config::check::finding::Finding;
use crate::config::check::options;
use crate::config::extract::merged;
use crate::config::keys::{dotted, path_of};
use crate::config::kind::{FamilySpec, OptionConflict, OwnedList, Requirement, Spec};
use crate::config::loaded::Loaded;
use crate::config::spans::Path;
use crate::config::suggest::any_of;
use crate::config::vocabulary::Vocabulary;

/// Kinds that are named as the owners of an option.
const MAX_OWNERS: usize = 4;

/// An entry of a list.
struct ListEntry<'a> {
    /// Dotted name: `data.transforms.train[1]`.
    at: String,
    family: &'a FamilySpec,
    kind: &'a Spec,
    /// The table as written.
    given: &'a Dict,
    /// True if only entries follow that stand after the last place.
    is_last: bool,
}

/// Findings about each entry of a list, and about the entries inside it.
pub(crate) fn all(loaded: &Loaded, vocabulary: &Vocabulary) -> Vec<Finding> {
    let whole: Dict = merged(&loaded.layers).extract().unwrap_or_default();
    let whole = Value::from(whole);
    let mut found = Vec::new();
    for family in vocabulary.lists() {
        found.extend(family.owned_lists().filter_map(|list| misplaced(loaded, &list)));
        for list in family.lists {
            if let Some(value) = whole.find_ref(list) {
                in_list(family, &path_of(list), value, &mut found);
            }
        }
    }
    found
}

/// "`layers` belongs to `graph`, but `name` is `mlp`"; "`graph` needs `layers`"
fn misplaced(loaded: &Loaded, list: &OwnedList) -> Option<Finding> {
    let OwnedList { table, key, owner } = list;
    let (name, list) = (format!("{table}.name"), format!("{table}.{key}"));
    let kind = loaded.word(&name)?;
    match (kind == *owner, loaded.is_given(&list)) {
        (false, true) => {
            let what = format!("belongs to `{owner}`, but `name` is `{kind}`");
            let help = format!("remove it, or pass `~{list}` on the command line");
            Some(Finding::new(list, what).about(name).help(help))
        }
        (true, false) => {
            Some(Finding::new(list, format!("`{owner}` needs `{key}`")).asked_by(name))
        }
        _ => None,
    }
}

fn in_list(family: &FamilySpec, path: &Path, list: &Value, found: &mut Vec<Finding>) {
    let Value::Array(_, items) = list else { return };
    for (index, item) in items.iter().enumerate() {
        let Value::Dict(_, given) = item else { continue };
        let inside = |parts: &[&str]| {
            path.iter()
                .map(String::as_str)
                .chain(parts.iter().copied())
                .map(str::to_owned)
                .collect()
        };
        let number = index.to_string();
        let at: Path = inside(&[&number]);
        let name = given.get("name").and_then(Value::as_str).unwrap_or_default();
        let Some(kind) = family.kind(name) else { continue };
        let is_behind = |item: &Value| {
            let name = item.find_ref("name").and_then(Value::as_str).unwrap_or_default();
            family
                .kind(name)
                .is_some_and(|kind| kind.requirements.contains(&Requirement::AfterLast))
        };
        let is_last = items[index + 1..].iter().all(is_behind);
        found.extend(ListEntry { at: dotted(&at), family, kind, given, is_last }.findings());
        for key in kind.keys.iter().filter(|key| key.is_list()) {
            if let Some(value) = given.get(&key.name) {
                in_list(family, &inside(&[&number, &key.name]), value, found);
            }
        }
    }
}

impl ListEntry<'_> {
    fn findings(&self) -> Vec<Finding> {
        let name = format!("{}.name", self.at);
        let all = self
            .foreign()
            .into_iter()
            .chain(self.ranges())
            .chain(self.rules())
            .chain(self.last())
            .chain(self.unnamed());
        // What stands in for a wrong name has no faults.
        all.map(|finding| finding.about(&name)).collect()
    }

    /// "`p` belongs to `random_horizontal_flip`, but `name` is `resize`"
    fn foreign(&self) -> Vec<Finding> {
        let is_foreign = |key: &&String| {
            self.kind.key(key).is_none() && self.family.owners(key).next().is_some()
        };
        let finding = |key: &String| {
            let owners = match self.family.owners(key).count() {
                ..=MAX_OWNERS => any_of(self.family.owners(key)),
                _ => format!("other {}s", self.family.noun),
            };
            let what = format!("belongs to {owners}, but `name` is `{}`", self.kind.name);
            Finding::new(format!("{}.{key}", self.at), what)
        };
        self.given.keys().filter(is_foreign).map(finding).collect()
    }

    /// Numbers that are not in the range of their option.
    fn ranges(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        for key in &self.kind.keys {
            if let Some(value) = self.given.get(&key.name) {
                options::range(
                    &format!("{}.{}", self.at, key.name),
                    value,
                    &key.schema,
                    &mut found,
                );
            }
        }
        found
    }

    /// Findings of the kind's own rules.
    fn rules(&self) -> Vec<Finding> {
        let own = self.given.iter().filter(|(key, _)| self.kind.key(key).is_some());
        let own: Dict = own.map(|(key, value)| (key.clone(), value.clone())).collect();
        let Ok(options) = self.kind.read(&own) else { return Vec::new() };
        let finding = |wrong: OptionConflict| {
            let finding = Finding::new(format!("{}.{}", self.at, wrong.key), wrong.what);
            wrong
                .with
                .iter()
                .fold(finding, |finding, key| finding.about(format!("{}.{key}", self.at)))
        };
        self.kind.check(&options).into_iter().map(finding).collect()
    }

    fn last(&self) -> Option<Finding> {
        if self.is_last {
            return None;
        }
        let name = format!("{}.name", self.at);
        match self.kind.requirements {
            needs if needs.contains(&Requirement::LastPlace) => {
                Some(Finding::new(name, "must be the last of its list"))
            }
            needs if needs.contains(&Requirement::AfterLast) => {
                let last = |kind: &&Spec| kind.requirements.contains(&Requirement::LastPlace);
                let last = any_of(self.family.kinds.iter().filter(last).map(|kind| kind.name));
                let what = format!("must stand at the end of its list, after {last}");
                Some(Finding::new(name, what))
            }
            _ => None,
        }
    }

    /// "`repeat` needs `key`"
    fn unnamed(&self) -> Option<Finding> {
        let needs_key = self.kind.requirements.contains(&Requirement::EntryKey);
        (needs_key && !self.given.contains_key("key")).then(|| {
            let what = format!("`{}` needs `key`", self.kind.name);
            let key = format!("{}.key", self.at);
            Finding::new(key, what).asked_by(format!("{}.name", self.at))
        })
    }
}
