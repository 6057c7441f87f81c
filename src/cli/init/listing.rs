//! What is in a folder, in order and without hidden files.

use std::fs;
use std::path::{Path, PathBuf};

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

/// Whether the name of a file begins with a dot.
pub(super) fn is_hidden(path: &Path) -> bool {
    name(path).starts_with('.')
}

/// The name of a file.
pub(super) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// What follows the last dot of a file's name, in lower case.
pub(super) fn ending(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_lowercase()
}
