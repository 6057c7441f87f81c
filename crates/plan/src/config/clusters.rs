//! `[cluster.NAME]` tables, which say where experiments can be submitted.
//!
//! ```text
//! ddprun.toml ... ~/.config/ddprun/clusters.toml ─read─▶ the table of one name | Problems, each with a caret
//! ```
//!
//! Note that files are not merged: the first file that has a cluster of the name says everything
//! about it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};

use crate::config::keys::{join, path_of};
use crate::config::kind::{Choice, FamilySpec, Options, of_kind_named, page};
use crate::config::layer::{Layer, Source};
use crate::config::problem::{Problem, Problems};
use crate::config::reader::Reader;
use crate::config::suggest::{any_of, remedy};
use crate::config::table::{declared, table};
use crate::config::{Vocabulary, text};

/// The table whose tables are clusters.
pub const CLUSTER: &str = "cluster";
/// The key that chooses a cluster's kind.
const KIND: &str = "kind";

table! {
    /// Every key of a cluster, what it means, and its default.
    ///
    /// Clusters are described in `ddprun.toml`, beside the experiment or in the current folder, or
    /// in `~/.config/ddprun/clusters.toml`. `ddprun submit experiment.toml --on NAME` uses the
    /// first of that name.
    struct ClusterFile {
        /// Clusters by their names.
        cluster: BTreeMap<String, ClusterTable>,
    }
}

table! {
    /// A cluster.
    struct ClusterTable {
        /// How jobs are run. Required.
        #[schemars(example = &"slurm")]
        kind: String,
        /// Options of the kind.
        options: Options,
    }
}

/// A cluster that a file describes.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Name in the file.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Kind of the cluster, with its options.
    pub kind: Choice,
}

/// Why there is no such cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No file describes one of this name.
    #[error("no cluster is called `{name}`")]
    Name {
        /// The name.
        name: String,
        /// The clusters that there are, if there is any.
        known: Vec<String>,
    },
    /// The cluster's settings are wrong.
    #[error(transparent)]
    Problems(#[from] Problems),
}

impl ClusterError {
    /// A remedy, if there is one.
    pub fn help(&self) -> Option<String> {
        let Self::Name { name, known } = self else { return None };
        if !known.is_empty() {
            return Some(remedy(name, known.iter().map(String::as_str)));
        }
        let name = if name.is_empty() { "lab" } else { name };
        Some(format!(
            "describe it in `ddprun.toml`, for example:\n    [cluster.{name}]\n    kind = \
             \"slurm\"\n    partition = \"gpu\""
        ))
    }
}

/// Reads the cluster `name` in the first of `files` that has one of this name. Files that are not
/// there have none.
///
/// # Errors
///
/// There is no such cluster, or its table is wrong.
pub fn load(
    files: &[PathBuf],
    name: &str,
    vocabulary: &Vocabulary,
) -> Result<Cluster, ClusterError> {
    let mut known = Vec::new();
    for path in files.iter().filter(|path| path.exists()) {
        let mut reader = read(path, vocabulary)?;
        let names = reader.keys(&path_of(CLUSTER));
        // A slip in the name of the only table must not read as if there were no cluster.
        reader.only(&[], &[CLUSTER]);
        let is_here = names.iter().any(|known| known == name);
        let found = is_here.then(|| cluster(&mut reader, name, path)).flatten();
        if !reader.problems.is_empty() {
            return Err(Problems::new(reader.problems).into());
        }
        if let Some(found) = found {
            return Ok(found);
        }
        known.extend(names);
    }
    Err(ClusterError::Name { name: name.to_owned(), known })
}

/// Reads all clusters of the file `path`.
///
/// # Errors
///
/// All problems at once.
pub fn load_all(path: &Path, vocabulary: &Vocabulary) -> Result<Vec<Cluster>, Problems> {
    let mut reader = read(path, vocabulary)?;
    reader.only(&[], &[CLUSTER]);
    let table = path_of(CLUSTER);
    if reader.get(&table).is_some_and(|value| value.as_dict().is_none()) {
        let help = format!("begin each cluster with `[{CLUSTER}.NAME]`");
        reader.wrong_help(&table, "must be a table of clusters", help);
    }
    let names = reader.keys(&table);
    let found = names.iter().filter_map(|name| cluster(&mut reader, name, path)).collect();
    if reader.problems.is_empty() { Ok(found) } else { Err(Problems::new(reader.problems)) }
}

fn read(path: &Path, vocabulary: &Vocabulary) -> Result<Reader, Problems> {
    let (layer, problems) = Layer::document(Source::File(path.to_owned()), text::read(path)?);
    if !problems.is_empty() {
        return Err(Problems::new(problems));
    }
    Ok(Reader::new(layer, vocabulary, "a file of clusters"))
}

/// The cluster `name`; `None` if its table is wrong, which the reader then knows.
fn cluster(reader: &mut Reader, name: &str, path: &Path) -> Option<Cluster> {
    reader.noun = "a cluster";
    let table = join(&path_of(CLUSTER), name);
    if reader.get(&table).is_some_and(|value| value.as_dict().is_none()) {
        let help = format!("begin it with `[{CLUSTER}.{name}]`");
        reader.wrong_help(&table, "must be a table", help);
        return None;
    }
    let kind = join(&table, KIND);
    if reader.get(&kind).is_none() {
        let kinds = reader.vocabulary.family(CLUSTER).cloned();
        let help = format!("choose {}", any_of(kinds.iter().flat_map(FamilySpec::names)));
        reader.wrong_help(&table, "has no `kind`", help);
        return None;
    }
    let n_before = reader.problems.len();
    let kind = reader.choice(CLUSTER, &kind, "", &table);
    let is_right = reader.problems.len() == n_before;
    is_right.then(|| Cluster { name: name.to_owned(), path: path.to_owned(), kind })
}

/// A problem of the key `key` of a cluster, drawn on its file.
pub fn problem(cluster: &Cluster, key: &str, what: &str, vocabulary: &Vocabulary) -> Problem {
    let at = join(&join(&path_of(CLUSTER), &cluster.name), key);
    match read(&cluster.path, vocabulary) {
        Ok(reader) => reader.problem(&at, what),
        Err(_) => Problem::new(format!("{CLUSTER}.{}.{key}", cluster.name), what),
    }
}

/// The reference page: every key of every kind with its meaning and its default, as TOML.
pub fn reference(vocabulary: &Vocabulary) -> String {
    page(&declared::<ClusterFile>(), vocabulary.families())
}

/// The JSON schema of a file of clusters.
pub fn json_schema(vocabulary: &Vocabulary) -> Json {
    let kinds = vocabulary.family(CLUSTER).into_iter().flat_map(|family| &family.kinds);
    let kinds: Vec<Json> = kinds.map(|kind| of_kind_named(kind, Map::new(), KIND)).collect();
    let mut root = declared::<ClusterFile>();
    root["properties"][CLUSTER]["additionalProperties"] = json!({ "oneOf": kinds });
    root["$schema"] = "http://json-schema.org/draft-07/schema#".into();
    root["title"] = "Clusters of ddprun".into();
    root
}
