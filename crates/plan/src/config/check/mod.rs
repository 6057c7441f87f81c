//! Rules that a well-formed experiment can still break, each a function that returns all it finds.
//!
//! A rule does not stop at its first finding, and does not speak about keys that were already
//! reported: a value of the wrong kind has been replaced, so its consequences mean nothing.

mod averaging;
mod lists;
mod names;
mod options;
mod conflicts;
pub(crate) mod split;

pub(crate) use names::{FOLDER_NAME, absent_inputs, is_folder_name, path_options};
pub use names::{HUB, NO_URL, TAG_FORM, instead_of_url, is_hub_name, is_tag, url_scheme};
pub(crate) use options::range;

use std::collections::BTreeSet;

use crate::config::loaded::Loaded;
use crate::config::problem::Problem;
use crate::config::vocabulary::Vocabulary;

/// Something that a rule found.
pub(crate) struct Finding {
    /// The key that is wrong.
    pub(crate) key: String,
    /// The key under whose value the caret goes, if it is another one.
    place: Option<String>,
    /// Other keys that the finding depends on.
    about: Vec<String>,
    pub(crate) what: String,
    pub(crate) help: Option<String>,
}

impl Finding {
    fn new(key: impl Into<String>, what: impl Into<String>) -> Self {
        let (key, what) = (key.into(), what.into());
        Self { key, place: None, about: Vec::new(), what, help: None }
    }

    fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    fn about(mut self, key: impl Into<String>) -> Self {
        self.about.push(key.into());
        self
    }

    /// The key is missing; `place` is the one that asks for it.
    fn asked_by(mut self, place: impl Into<String>) -> Self {
        let place = place.into();
        self.about.push(place.clone());
        self.place = Some(place);
        self
    }

    fn is_consequence(&self, broken: &BTreeSet<String>) -> bool {
        let part_of =
            |a: &str, b: &str| a == b || (a.starts_with(b) && a[b.len()..].starts_with(['.', '[']));
        let mut keys = self.about.iter().chain([&self.key]);
        keys.any(|key| broken.iter().any(|b| part_of(key, b) || part_of(b, key)))
    }

    pub(crate) fn into_problem(self, loaded: &Loaded) -> Problem {
        let place = self.place.as_deref().unwrap_or(&self.key);
        loaded.problem_at(&self.key, place, self.what).maybe_help(self.help)
    }
}

/// All findings of all rules that are not consequences of `broken` keys.
pub(crate) fn all(
    loaded: &Loaded,
    vocabulary: &Vocabulary,
    broken: &BTreeSet<String>,
) -> Vec<Problem> {
    let rules: [fn(&Loaded) -> Vec<Finding>; 13] = [
        names::schema_version,
        options::numbers,
        names::sinks_twice,
        names::run_name,
        names::tags,
        names::paths,
        names::placeholders,
        conflicts::length_and_batch,
        averaging::ema,
        averaging::swa,
        averaging::lookahead,
        conflicts::precision_and_backend,
        conflicts::param_groups,
    ];
    rules
        .iter()
        .flat_map(|rule| rule(loaded))
        .chain(names::metrics(loaded, vocabulary))
        .chain(names::mirror(loaded))
        .chain(names::backend(loaded, vocabulary))
        .chain(conflicts::transforms(loaded, vocabulary))
        .chain(conflicts::monitors(loaded, vocabulary))
        .chain(split::all(loaded, vocabulary))
        .chain(options::all(loaded, vocabulary))
        .chain(lists::all(loaded, vocabulary))
        .filter(|finding| !finding.is_consequence(broken))
        .map(|finding| finding.into_problem(loaded))
        .collect()
}
