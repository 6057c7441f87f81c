//! What is in a folder, in order and without hidden files.

use std::fs;
use std::path::{Path, PathBuf};

use crate::data;

/// Sub-folders of `folder`.
pub(super) fn folders(folder: &Path) -> Vec<PathBuf> {
    entries(folder, Path::is_dir)
}

/// Files of `folder`.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    entries(folder, Path::is_file)
}

fn entries(folder: &Path, is_asked: fn(&Path) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| !is_hidden(path) && is_asked(path)).collect();
    found.sort_unstable();
    found
}

/// Whether a file or folder is passed over, as by the data sets.
pub(super) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(data::is_hidden)
}

/// The name of a file.
pub(super) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What follows the last dot of a file's name, in lower case; before it, if that is `gz`.
pub(super) fn ending(path: &Path) -> String {
    data::unpacked(path).extension().unwrap_or_default().to_string_lossy().to_lowercase()
}

/// The name of a file before that.
pub(super) fn stem(path: &Path) -> String {
    data::unpacked(path).file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
