//! Inputs of a trained model: files without answers -> samples, and their names.

use std::ffi::OsStr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Dataset;
use crate::error::{Error, shown};
use crate::file_names::LeftOut;
use crate::listing::paths::Paths;
use crate::plan::DataPlan;
use crate::transform::Transforms;
use crate::walk::files_below;

/// Folders in folders that are looked into.
const MAX_DEPTH: usize = 64;

/// The inputs to predict for, and the run's knowledge of such data.
#[derive(Clone, Copy, Debug)]
pub struct PredictionRequest<'a> {
    /// Files and folders.
    pub paths: &'a [PathBuf],
    /// The data of the run: classes, transforms, what was found out about them.
    pub plan: &'a DataPlan,
    /// All transforms that the program knows.
    pub transforms: &'a Transforms,
}

/// Samples without answers.
pub struct Inputs {
    /// The samples. Their targets are the tokens that follow in a text, and else have no meaning.
    pub samples: Arc<dyn Dataset>,
    /// The items that answers are given for, in the order of the inputs.
    pub items: InputItems,
    pub answers: PredictionKind,
    /// Notes for the user: categories that no training row has, dates that could not be determined.
    pub notes: Vec<String>,
}

/// The items that answers are given for.
#[derive(Clone, Debug)]
pub enum InputItems {
    /// Files of one sample each.
    Files(Vec<PathBuf>),
    /// Rows, documents, tables.
    Listed(Vec<InputItem>),
}

/// An item that an answer is given for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputItem {
    pub file: Arc<Path>,
    /// Position in the file, from 1, if there may be several.
    pub row: Option<u64>,
    /// Indices of its samples, or the reason why it has none.
    pub samples: Result<Range<usize>, String>,
    /// The date of each step that is forecast, where it is known; empty if the table has no dates.
    pub dates: Vec<Option<String>>,
}

/// The meaning of the answers to samples.
#[derive(Clone, Debug, PartialEq)]
pub enum PredictionKind {
    /// One class, several classes or numbers, as the loss says.
    OfLoss(Vec<OutputScale>),
    /// Values of each series at the time steps after the last row.
    Series(Vec<OutputScale>),
    /// The loss of each token under the model.
    TokenLoss,
}

/// A number that is predicted, and how it is given in the unit of the data.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputScale {
    /// Name in the data.
    pub name: String,
    /// Mean that was subtracted before training.
    pub mean: f64,
    /// Divisor before training.
    pub deviation: f64,
}

impl OutputScale {
    /// A number that was not standardised.
    pub fn plain(name: &str) -> Self {
        Self { name: name.to_owned(), mean: 0.0, deviation: 1.0 }
    }

    /// A number that a model gave, in the unit of the data.
    pub fn in_data_units(&self, value: f32) -> f32 {
        (f64::from(value) * self.deviation + self.mean) as f32
    }
}

impl InputItems {
    pub fn len(&self) -> usize {
        match self {
            Self::Files(files) => files.len(),
            Self::Listed(items) => items.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The item at `index`.
    ///
    /// # Panics
    ///
    /// `index` is not below [`InputItems::len`].
    pub fn get(&self, index: usize) -> InputItem {
        match self {
            Self::Files(files) => {
                InputItem::new(&Arc::from(&*files[index]), None, index..index + 1)
            }
            Self::Listed(items) => items[index].clone(),
        }
    }

    /// True if some are rows of a file.
    pub fn have_rows(&self) -> bool {
        matches!(self, Self::Listed(items) if items.iter().any(|item| item.row.is_some()))
    }
}

impl InputItem {
    /// An item of these samples.
    pub fn new(file: &Arc<Path>, row: Option<u64>, samples: Range<usize>) -> Self {
        Self { file: file.clone(), row, samples: Ok(samples), dates: Vec::new() }
    }

    /// An item that cannot be read.
    pub fn unreadable(file: &Arc<Path>, row: Option<u64>, why: String) -> Self {
        Self { file: file.clone(), row, samples: Err(why), dates: Vec::new() }
    }
}

/// Files to predict.
#[derive(Clone, Debug, Default)]
pub struct InputFiles {
    pub files: Vec<PathBuf>,
    /// Files that were left out of folders, in words.
    pub notes: Vec<String>,
}

/// The files that `paths` name: each file, and in folders at any depth, in the order of their
/// names, those that are `wanted`.
pub fn files(
    paths: &[PathBuf],
    what: &'static str,
    wanted: &dyn Fn(&Path) -> bool,
) -> Result<InputFiles, Error> {
    let InputFiles { files: mut found, mut notes } = InputFiles::default();
    for path in paths {
        if !path.exists() {
            return Err(Error::Missing { what: "the input", path: path.clone(), expected: what });
        }
        if !path.is_dir() {
            found.push(path.clone());
            continue;
        }
        let before = found.len();
        let mut left_out = LeftOut::default();
        for file in files_below(path, MAX_DEPTH) {
            let file = file?;
            if wanted(&file) {
                found.push(file);
            } else {
                left_out.count(file.file_name().unwrap_or_default());
            }
        }
        let left_out = left_out.words();
        if found.len() == before {
            let others = left_out.map(|others| format!(", but {others}")).unwrap_or_default();
            let what = format!("it contains no {what}{others}");
            return Err(Error::Format { path: path.clone(), what });
        }
        notes.extend(left_out.map(|others| {
            format!("`{}`: files that are not read: {others}; only {what} are", shown(path))
        }));
    }
    Ok(InputFiles { files: found, notes })
}

/// True if a path has one of these endings, in any case.
pub fn ends_with(path: &Path, endings: &[&str]) -> bool {
    let ending = path.extension().and_then(OsStr::to_str).unwrap_or_default();
    endings.iter().any(|known| ending.eq_ignore_ascii_case(known))
}

/// The files with a label of no meaning.
pub(crate) fn unlabelled(files: &[PathBuf]) -> Paths {
    let mut paths = Paths::default();
    for file in files {
        paths.push_path(file, 0);
    }
    paths
}

/// Refuses inputs without columns that the run was trained on.
pub(crate) fn lacks(path: &Path, missing: &[&str], present: &[String]) -> Error {
    let what = format!("{}; it has {}", lacking("column", missing), listed(present));
    Error::Format { path: path.to_owned(), what }
}

/// Refuses JSON of which no line has keys that the run was trained on.
pub(crate) fn lacks_keys(path: &Path, missing: &[&str], present: &[String]) -> Error {
    Error::WithHelp {
        path: path.to_owned(),
        what: format!("{}; it has {}", lacking("key", missing), listed(present)),
        help: "rename its keys to those of the run, or write `null` where a value is unknown"
            .to_owned(),
    }
}

fn lacking(noun: &str, missing: &[&str]) -> String {
    let named: Vec<String> = missing.iter().map(|name| format!("`{name}`")).collect();
    let s = if missing.len() == 1 { "" } else { "s" };
    format!("it lacks the {noun}{s} {}, which the run was trained on", named.join(", "))
}

fn listed(names: &[String]) -> String {
    let name = |name: &String| format!("`{}`", shown(Path::new(name)));
    names.iter().map(name).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_read_at_any_depth_in_the_order_of_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for name in ["b/2.csv", "b/1.csv", "a.csv", "b/c/0.csv", "b/note.txt", ".hidden/x.csv"] {
            let path = root.join(name);
            crate::files::create_folder(path.parent().unwrap()).unwrap();
            crate::files::write_atomic(&path, b"").unwrap();
        }
        let is_csv = |path: &Path| ends_with(path, &["csv"]);
        let found = |paths: &[&str]| {
            let paths: Vec<PathBuf> = paths.iter().map(|path| root.join(path)).collect();
            let found = files(&paths, "tables", &is_csv);
            found.map(|InputFiles { files: found, .. }| {
                let short = |path: &PathBuf| path.strip_prefix(root).unwrap().display().to_string();
                found.iter().map(short).collect::<Vec<_>>().join(" ")
            })
        };
        assert_eq!(found(&[""]).unwrap(), "a.csv b/1.csv b/2.csv b/c/0.csv");
        assert_eq!(found(&["b/note.txt", "a.csv"]).unwrap(), "b/note.txt a.csv");
        assert!(found(&["absent"]).unwrap_err().to_string().contains("absent` does not exist"));
        let error = found(&["b/note.txt", "b/c"]).map(drop);
        assert!(error.is_ok());
        crate::files::create_folder(&root.join("none")).unwrap();
        assert!(found(&["none"]).unwrap_err().to_string().contains("it contains no tables"));
        // Files in a folder that are not read are reported.
        for name in ["b/2.CSV.bak", "b/noext", "b/a b.tar gz", "none/x.xlsx"] {
            crate::files::write_atomic(&root.join(name), b"").unwrap();
        }
        let InputFiles { notes, .. } =
            files(&[root.join("b"), root.join("a.csv")], "tables", &is_csv).unwrap();
        let expected = "b`: files that are not read: 2 without an ending, 1 .bak, 1 .txt; only \
                        tables are";
        assert!(notes.len() == 1 && notes[0].ends_with(expected), "{notes:?}");
        let none = found(&["none"]).unwrap_err().to_string();
        assert!(none.ends_with("it contains no tables, but 1 .xlsx"), "{none}");
    }
}
