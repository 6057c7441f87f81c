//! Rules that a well-formed experiment can still break, each a function that returns all it finds.
//!
//! A rule does not stop at its first finding, and does not speak about keys that were already
//! reported: a value of the wrong kind has been replaced, so its consequences mean nothing.

mod averaging;
mod finding;
mod inputs;
mod lists;
mod names;
mod options;
mod conflicts;
mod split;

pub(crate) use finding::Finding;
pub(crate) use names::{FOLDER_NAME, is_folder_name};
pub use names::{TAG_FORM, is_tag};
pub(crate) use options::range;

use std::collections::BTreeSet;

use crate::config::loaded::Loaded;
use crate::config::problem::Problem;
use crate::config::vocabulary::Vocabulary;

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
