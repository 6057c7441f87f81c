//! A TOML file -> what it describes, by its keys.

use std::path::Path;

use crate::config::clusters::CLUSTER;
use crate::config::layer::{Layer, Source};
use crate::config::problem::{Problem, Problems};
use crate::config::schema::DECLARED;
use crate::config::table::keys_of;
use crate::config::text;

/// The file that is read for clusters beside an experiment.
const CLUSTERS_FILE: &str = "ddprun.toml";

/// What a TOML file describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// An experiment, for `ddprun FILE`.
    Experiment,
    /// A sweep, for `ddprun sweep FILE`.
    Sweep,
    /// Clusters, for `ddprun submit`.
    Clusters,
}

impl FileKind {
    /// What the file `path` describes. One without any key is an experiment that lacks them.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is no TOML, or has no key of any of these.
    pub fn of(path: &Path) -> Result<Self, Problems> {
        let text = text::read(path)?;
        let (layer, problems) = Layer::document(Source::File(path.to_owned()), text);
        if !problems.is_empty() {
            return Err(Problems::new(problems));
        }
        let has = |key: &str| layer.dict.contains_key(key);
        if has(CLUSTER) || path.file_name().is_some_and(|name| name == CLUSTERS_FILE) {
            return Ok(Self::Clusters);
        }
        if has("sweep") || has("base") {
            return Ok(Self::Sweep);
        }
        let known = keys_of(&DECLARED);
        if layer.dict.is_empty() || known.is_some_and(|keys| keys.keys().any(|key| has(key))) {
            return Ok(Self::Experiment);
        }
        Err(foreign(&layer, path).into())
    }
}

/// The problem of a TOML file of another program.
fn foreign(layer: &Layer, path: &Path) -> Problem {
    let what =
        format!("`{}` has no key of an experiment, a sweep or a file of clusters", path.display());
    let first = layer.dict.keys().filter_map(|key| layer.places.get(&[key.clone()][..]));
    let problem = Problem::new("", what)
        .help("leave it out; pre-commit passes the files that its key `files` matches");
    match first.min_by_key(|place| place.key.start) {
        Some(place) => problem.at(&layer.text, place.key.clone(), 0),
        None => problem,
    }
}
