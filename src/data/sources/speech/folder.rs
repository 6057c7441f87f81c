//! Folders of recordings.

use std::path::{Path, PathBuf};

use crate::data::error::Error;
use crate::data::file_names::is_hidden;
use crate::data::sources::speech::audio;
use crate::data::sources::speech::utterance::{UNNAMED, Utterance};

/// Folders below a root that are looked into.
const MAX_DEPTH: usize = 8;
const EXPECTED: &str = "WAV, FLAC, OGG or MP3 files, or folders of them";

/// The utterances of the folder `root`.
///
/// # Errors
///
/// As [`list`].
pub(super) fn utterances(root: &Path) -> Result<Vec<Utterance>, Error> {
    let utterance = |path: PathBuf| Utterance { class: class(root, &path), path, span: None };
    Ok(list(root)?.into_iter().map(utterance).collect())
}

/// All recordings below `root`, in order, without what begins with a dot.
///
/// # Errors
///
/// The folder is absent, cannot be read or holds none.
pub(super) fn list(root: &Path) -> Result<Vec<PathBuf>, Error> {
    let missing =
        || Error::Missing { what: "the folder of speech", path: root.into(), expected: EXPECTED };
    if !root.exists() {
        return Err(missing());
    }
    let mut files = Vec::new();
    let mut open = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = open.pop() {
        let failed = |source| Error::Io { action: "list", path: folder.clone(), source };
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if is_hidden(&entry.file_name()) {
                continue;
            }
            let path = entry.path();
            if path.is_dir() && depth < MAX_DEPTH {
                open.push((path, depth + 1));
            } else if audio::is_named_so(&path) {
                files.push(path);
            }
        }
    }
    if files.is_empty() {
        let what = "it contains no WAV, FLAC, OGG or MP3 files".to_owned();
        return Err(Error::Format { path: root.into(), what });
    }
    files.sort();
    Ok(files)
}

/// Whether classes stand in the names of files that lie in `root` itself.
pub(super) fn names_classes(root: &Path, utterances: &[Utterance]) -> bool {
    let is_named =
        |utterance: &Utterance| utterance.path.parent() == Some(root) && utterance.class != UNNAMED;
    utterances.iter().any(is_named)
}

/// What `file` says.
pub(super) fn class(root: &Path, file: &Path) -> String {
    let text =
        |name: Option<&std::ffi::OsStr>| name.unwrap_or_default().to_string_lossy().into_owned();
    match file.parent() {
        Some(folder) if folder != root => text(folder.file_name()),
        _ => {
            let name = text(file.file_stem());
            name.split_once('_').map_or(UNNAMED.to_owned(), |(class, _)| class.to_owned())
        }
    }
}
