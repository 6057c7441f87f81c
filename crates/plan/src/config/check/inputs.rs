//! Files and folders that an experiment reads: which they are, and which are not there.

use std::path::{Path, PathBuf};

use crate::config::check::finding::Finding;
use crate::config::check::names::path_finding;
use crate::config::layer::Source;
use crate::config::loaded::Loaded;
use crate::config::problem::Problem;
use crate::config::urls::is_hub_name;
use crate::config::vocabulary::Vocabulary;

impl Loaded {
    /// Options of the chosen components that name a file or folder to read: their dotted keys and
    /// values.
    pub fn path_options(&self, vocabulary: &Vocabulary) -> Vec<(String, &str)> {
        let mut paths = Vec::new();
        for family in vocabulary.families() {
            let table = family.table;
            let name = self.word(&format!("{table}.name")).unwrap_or_default();
            let Some((kind, options)) = family.kind(name).zip(self.experiment.options(table))
            else {
                continue;
            };
            for key in kind.keys.iter().filter(|key| key.is_path()) {
                if let Some(path) = options.get(&key.name).and_then(|value| value.as_str()) {
                    paths.push((format!("{table}.{}", key.name), path));
                }
            }
        }
        paths
    }

    /// A problem for each file and folder that is to be read and does not exist. Not a rule: what a
    /// stored experiment names may be on another machine.
    pub fn absent_inputs(&self, vocabulary: &Vocabulary) -> Vec<Problem> {
        let weights = self.experiment.model.pretrained.as_deref();
        // Without an ending it may be the name of a run.
        let weights = weights.filter(|weights| {
            weights.extension().is_some()
                && !weights.to_str().is_some_and(|text| text.contains(':'))
        });
        let weights = weights.map(|weights| ("model.pretrained".to_owned(), weights));
        let options = self.path_options(vocabulary).into_iter().filter(|(key, path)| {
            // These may be words, too: `char`, `chatml`.
            let may_be_word =
                [".tokenizer", ".chat_template"].iter().any(|name| key.ends_with(name));
            !is_hub_name(path) && (!may_be_word || path.contains(['.', '/']))
        });
        let options = options.map(|(key, path)| (key, Path::new(path)));
        let absent = weights.into_iter().chain(options).filter_map(|(key, path)| absent(key, path));
        absent.map(|finding| finding.into_problem(self)).collect()
    }

    /// The experiment to run instead if the data of this one are missing. `None` also if the command
    /// line or the environment names the data: that choice is not replaced.
    pub fn fallback(&self, vocabulary: &Vocabulary) -> Option<PathBuf> {
        let is_asked = |key: &str| {
            let source = self.sources.get(key);
            matches!(source, Some(Source::CommandLine(_) | Source::Environment(_)))
        };
        let paths = self.path_options(vocabulary);
        let mut data = paths.iter().map(|(key, _)| &**key).chain(["data.name"]);
        let is_named = data.any(|key| key.starts_with("data.") && is_asked(key));
        self.fallback_path().filter(|_| !is_named)
    }
}

/// A finding if there is nothing at `path`.
fn absent(key: String, path: &Path) -> Option<Finding> {
    // Which files a pattern names is seen where they are read.
    let is_pattern = path.to_str().is_some_and(|text| text.contains('*'));
    let place = if is_pattern { path.parent()? } else { path };
    let is_checked = !place.as_os_str().is_empty() && path_finding(&key, path, false).is_none();
    (is_checked && !place.exists()).then(|| {
        Finding::new(key, format!("`{}` does not exist", path.display()))
            .help("check the path; relative ones start at the current folder")
    })
}
