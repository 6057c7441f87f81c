//! The tags of a run: `experiment.tags` with later changes by `ddprun tag`.
//!
//! The changes are in a file of their own, so that a run can be tagged while it trains, and so that
//! tags which a resume adds to the experiment count too.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toml::Table;

use super::{Error, config, read_if_there};
use crate::config::is_tag;
use crate::files;
use crate::record::NewerFormat;

/// Name of the file in the run's folder.
pub const NAME: &str = "tags.json";
/// Version of the file.
const FORMAT: u32 = 1;

/// Changes of a run's tags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retagged {
    /// Tags beside those of the experiment.
    pub added: BTreeSet<String>,
    /// Tags of the experiment that were removed.
    pub removed: BTreeSet<String>,
}

#[derive(Serialize)]
struct Written<'a> {
    format: u32,
    #[serde(flatten)]
    changes: &'a Retagged,
}

impl Retagged {
    fn read(folder: &Path) -> Result<Self, Error> {
        let path = folder.join(NAME);
        let Some(bytes) = read_if_there(&path)? else { return Ok(Self::default()) };
        let value: Value =
            serde_json::from_slice(&bytes).map_err(|error| Error::damaged(&path, &error))?;
        NewerFormat::check(&path, value.get("format").and_then(Value::as_u64), FORMAT)?;
        serde_json::from_value(value).map_err(|error| Error::damaged(&path, &error))
    }

    /// These changes followed by `later`.
    fn after(mut self, later: &Self) -> Self {
        self.added.retain(|tag| !later.removed.contains(tag));
        self.removed.retain(|tag| !later.added.contains(tag));
        self.added.extend(later.added.iter().cloned());
        self.removed.extend(later.removed.iter().cloned());
        self
    }
}

/// Reads the tags of the run in `folder`, sorted; `config` is its experiment, if that can be read.
pub fn tags(folder: &Path, config: Option<&Table>) -> Result<Vec<String>, Error> {
    let Retagged { added, removed } = Retagged::read(folder)?;
    let asked = config.and_then(|config| config.get("experiment")?.get("tags")?.as_array());
    let asked = asked.into_iter().flatten().filter_map(toml::Value::as_str).map(str::to_owned);
    let kept = asked.filter(|tag| !removed.contains(tag));
    Ok(kept.chain(added).collect::<BTreeSet<String>>().into_iter().collect())
}

/// Changes the tags of the run in `folder` and returns the new ones. Nothing else of the run is
/// touched.
///
/// # Errors
///
/// A word is not a valid tag, or the file cannot be read or written; it is then unchanged.
pub fn retag(folder: &Path, changes: &Retagged) -> Result<Vec<String>, Error> {
    if let Some(tag) = changes.added.iter().chain(&changes.removed).find(|tag| !is_tag(tag)) {
        return Err(Error::NotATag { tag: tag.clone() });
    }
    // Another process may change the tags now; what it writes is not to be lost.
    let _turn = files::take_turn(folder)?;
    let before = Retagged::read(folder)?;
    let after = before.clone().after(changes);
    if after != before {
        let bytes = serde_json::to_vec_pretty(&Written { format: FORMAT, changes: &after });
        files::write_atomic(&folder.join(NAME), &bytes.unwrap_or_default())?;
    }
    tags(folder, config(folder).ok().as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RESOLVED;

    fn changes(added: &[&str], removed: &[&str]) -> Retagged {
        let set = |tags: &[&str]| tags.iter().map(|&tag| tag.to_owned()).collect();
        Retagged { added: set(added), removed: set(removed) }
    }

    #[test]
    fn tags_of_the_experiment_and_later_ones_are_told_together() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        files::write_atomic(&at.join(RESOLVED), b"[experiment]\ntags = ['b', 'a']").unwrap();
        assert_eq!(tags(at, config(at).ok().as_ref()).unwrap(), ["a", "b"]);
        assert!(!at.join(NAME).exists());
        assert_eq!(retag(at, &changes(&["c"], &["a"])).unwrap(), ["b", "c"]);
        assert_eq!(retag(at, &changes(&["a"], &["c", "never-there"])).unwrap(), ["a", "b"]);
        // What a resume adds counts, too.
        files::write_atomic(&at.join("resolved.2.toml"), b"[experiment]\ntags = ['d']").unwrap();
        assert_eq!(tags(at, config(at).ok().as_ref()).unwrap(), ["a", "d"]);
    }

    #[test]
    fn changes_at_the_same_time_are_all_made() {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..20).map(|n| format!("t{n:02}")).collect();
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| retag(folder.path(), &changes(&[name], &[])).unwrap());
            }
        });
        assert_eq!(tags(folder.path(), None).unwrap(), names);
    }

    #[test]
    fn a_word_that_is_no_tag_and_a_newer_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for word in ["", "two words", "\u{1b}[2J", "-a", "+a"] {
            let error = retag(folder.path(), &changes(&[word], &[])).unwrap_err();
            assert!(matches!(error, Error::NotATag { .. }), "{word}");
        }
        assert!(!folder.path().join(NAME).exists());
        files::write_atomic(&folder.path().join(NAME), b"{\"format\": 9}").unwrap();
        let message = retag(folder.path(), &changes(&["a"], &[])).unwrap_err().to_string();
        assert!(message.ends_with("has format 9, and this ddprun reads formats up to 1"));
    }
}
