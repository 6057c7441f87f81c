//! Fingerprint of a run's data, so that a resumed run continues with the same data: samples,
//! classes, shapes, and marks of the files.
//!
//! Nothing is decoded. A file of a table, a text or tokens is marked by its size and contents, an
//! image or a recording by its name and size, and in small folders by its contents too. Reads that
//! would take too long are left out: sizes in very large folders, and most of a very large file.

mod changes;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::config::kind::Options;
use crate::error::Error;
use crate::plan::{DataFacts, DataPlan, SourcePlan};
use crate::read;
use crate::sources::source::{DataSource, Files};

/// Version of the file.
const FORMAT: u32 = 1;
/// Files of a folder whose sizes are looked at: on a network file system each costs a question.
const MAX_SIZES: usize = 100_000;
/// Files of a folder whose contents are looked at.
const MAX_READ_FILES: usize = 1000;
/// Bytes of such files together.
const MAX_READ_BYTES: u64 = 64 << 20;
/// Files of a folder that are kept one by one, so that a difference has a name.
const MAX_LISTED_FILES: usize = 20_000;
/// Bytes of a file that is read from end to end.
const WHOLE: u64 = 256 << 20;
/// Number of pieces that are read of a longer file ...
const PIECES: u64 = 64;
/// ... of this many bytes.
const PIECE: usize = 64 << 10;

/// Fingerprint of a run's data; `data.json` in its folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fingerprint {
    format: u32,
    n_train: usize,
    n_val: usize,
    n_test: usize,
    /// Names of the classes in label order.
    classes: Vec<String>,
    /// Shape of a sample where the files decide it; `None` where it is not known.
    #[serde(default)]
    sample: Option<Vec<usize>>,
    /// Shape of a target.
    #[serde(default)]
    target: Option<Vec<usize>>,
    /// What a data set says of its contents itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    own: Option<String>,
    /// Empty where data are generated in memory, and for runs of earlier versions.
    #[serde(default)]
    parts: Vec<Part>,
}

/// A folder of files, or a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Part {
    /// `train`, `val` ...
    name: String,
    files: usize,
    /// Files below each folder, by what stands first in their names; empty for a single file.
    folders: BTreeMap<String, usize>,
    /// BLAKE3 of all names, and of sizes and contents as far as they were looked at.
    blake3: String,
    /// All files; `None` if there are too many.
    listing: Option<Vec<FileMark>>,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileMark {
    /// Below the folder.
    path: String,
    /// Size; `None` if it was not looked at, or the file cannot be read.
    bytes: Option<u64>,
    /// BLAKE3 of its contents, or of pieces of them; `None` where they were not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    blake3: Option<String>,
}

/// Thoroughness of the check of a part's files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckLevel {
    Names,
    Sizes,
    Contents,
}

impl CheckLevel {
    /// At the files of a folder: as closely as takes no time beside training on them.
    fn at_folder(files: &[PathBuf]) -> Self {
        if files.len() > MAX_SIZES {
            return Self::Names;
        }
        let size = |file: &PathBuf| fs::metadata(file).map_or(0, |meta| meta.len());
        let is_small =
            files.len() <= MAX_READ_FILES && files.iter().map(size).sum::<u64>() <= MAX_READ_BYTES;
        if is_small { Self::Contents } else { Self::Sizes }
    }
}

impl Fingerprint {
    /// Fingerprint of surveyed data.
    pub fn of(facts: &DataFacts, source: &dyn DataSource) -> Result<Self, Error> {
        Ok(Self {
            format: FORMAT,
            n_train: facts.n_train,
            n_val: facts.n_val,
            n_test: facts.n_test,
            classes: facts.classes.clone(),
            sample: facts.sample.clone(),
            target: Some(facts.target.clone()),
            own: source.fingerprint(&facts.source.survey),
            parts: parts(source, &facts.source.survey)?,
        })
    }

    /// Fingerprint from the plan of a run alone: all that is known of runs of earlier versions.
    pub fn of_plan(plan: &DataPlan) -> Self {
        Self {
            format: FORMAT,
            n_train: plan.n_train,
            n_val: plan.n_val,
            n_test: plan.n_test,
            classes: plan.classes.clone(),
            sample: None,
            target: None,
            own: None,
            parts: Vec::new(),
        }
    }

    /// A copy with other counts of training, validation and test samples, and other classes.
    #[must_use]
    pub fn counting(&self, [train, val, test]: [usize; 3], classes: Vec<String>) -> Self {
        Self { n_train: train, n_val: val, n_test: test, classes, ..self.clone() }
    }

    /// The fingerprint in `path`; `None` if there is none.
    pub fn read(path: &Path) -> Result<Option<Self>, Error> {
        let bytes = match read::whole(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes.map_err(unreadable(path))?,
        };
        let unusable = |what: String| Error::Format { path: path.to_owned(), what };
        let found: Self =
            serde_json::from_slice(&bytes).map_err(|error| unusable(error.to_string()))?;
        if found.format > FORMAT {
            let format = found.format;
            return Err(unusable(format!(
                "it has format {format}; this ddprun reads up to {FORMAT}"
            )));
        }
        Ok(Some(found))
    }

    /// The contents of the file.
    pub fn written(&self) -> Vec<u8> {
        // Numbers, words and lists of them have a written form.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Refuses files other than those of the fingerprint in the file `kept`, if there is one.
    /// Counts and classes are the plan's, which `open` compares.
    ///
    /// # Errors
    ///
    /// [`Error::Changed`], or a file cannot be read.
    pub fn refuse_other_files(
        kept: &Path,
        source: &dyn DataSource,
        plan: &SourcePlan,
    ) -> Result<(), Error> {
        let Some(earlier) = Self::read(kept)? else { return Ok(()) };
        let now = Self { parts: parts(source, &plan.survey)?, ..earlier.clone() };
        let differences = now.differences(&earlier);
        if differences.is_empty() { Ok(()) } else { Err(Error::Changed { differences }) }
    }
}

/// Marks of everything that a data set reads.
fn parts(source: &dyn DataSource, found: &Options) -> Result<Vec<Part>, Error> {
    let part = |files: Files| {
        let Files { name, root, paths, by_contents } = &files;
        let look = if *by_contents { CheckLevel::Contents } else { CheckLevel::at_folder(paths) };
        Part::of(name, root, paths, look)
    };
    Ok(source.files(found)?.into_iter().map(part).collect())
}

impl Part {
    fn of(name: &str, root: &Path, files: &[PathBuf], look: CheckLevel) -> Self {
        let mark = |file: &PathBuf| FileMark::of(below(root, file), file, look);
        // A pool of threads is not worth it for some files.
        let marks: Vec<FileMark> = if files.len() > MAX_READ_FILES {
            files.par_iter().map(mark).collect()
        } else {
            files.iter().map(mark).collect()
        };
        let mut hasher = blake3::Hasher::new();
        let mut folders = BTreeMap::new();
        for (mark, file) in marks.iter().zip(files) {
            // The bytes of the name, which need not be text.
            hasher.update(below(root, file).as_os_str().as_bytes());
            let size = mark.bytes.map_or(String::from("?"), |bytes| bytes.to_string());
            let contents = mark.blake3.as_deref().unwrap_or("?");
            hasher.update(format!("\0{size} {contents}\0").as_bytes());
            if let Some((folder, _)) = mark.path.split_once('/') {
                *folders.entry(folder.to_owned()).or_insert(0) += 1;
            }
        }
        Self {
            name: name.to_owned(),
            files: files.len(),
            folders,
            blake3: hasher.finalize().to_hex().to_string(),
            listing: (files.len() <= MAX_LISTED_FILES).then_some(marks),
        }
    }
}

impl FileMark {
    /// A file that cannot be read has neither size nor contents: the loader says why.
    fn of(path: &Path, file: &Path, look: CheckLevel) -> Self {
        let (bytes, blake3) = match look {
            CheckLevel::Names => (None, None),
            CheckLevel::Sizes => (fs::metadata(file).ok().map(|meta| meta.len()), None),
            CheckLevel::Contents => contents(file).ok().unzip(),
        };
        Self { path: path.to_string_lossy().into_owned(), bytes, blake3 }
    }
}

fn below<'a>(root: &Path, file: &'a Path) -> &'a Path {
    file.strip_prefix(root).unwrap_or(file)
}

/// Size of a file, and BLAKE3 of its contents; of pieces from its first to its last byte where it
/// is very long.
fn contents(path: &Path) -> io::Result<(u64, String)> {
    let file = read::open(path)?;
    let bytes = file.metadata()?.len();
    let hash = if bytes <= WHOLE { whole(&file)? } else { pieces(&file, bytes)? };
    Ok((bytes, hash.to_hex().to_string()))
}

fn whole(file: &File) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file.take(WHOLE))?;
    Ok(hasher.finalize())
}

fn pieces(file: &File, bytes: u64) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; PIECE];
    for index in 0..PIECES {
        let start = (bytes - PIECE as u64) / (PIECES - 1) * index;
        let start = if index == PIECES - 1 { bytes - PIECE as u64 } else { start };
        file.read_exact_at(&mut piece, start)?;
        hasher.update(&piece);
    }
    Ok(hasher.finalize())
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Io { action: "read", path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
