//! Entries of folders, in order and without hidden ones, and the form of names and numbers in
//! comments and files.

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

fn entries(folder: &Path, is_wanted: fn(&Path) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| !is_hidden(path) && is_wanted(path)).collect();
    found.sort_unstable();
    found
}

/// True if a file or folder is ignored, as the data sets do.
pub(super) fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(data::is_hidden)
}

/// The name of a file.
pub(super) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The extension of a file, in lower case; of `x.csv.gz` that before `gz`.
pub(super) fn ending(path: &Path) -> String {
    data::unpacked(path).extension().unwrap_or_default().to_string_lossy().to_lowercase()
}

/// The name of a file without its extension.
pub(super) fn stem(path: &Path) -> String {
    data::unpacked(path).file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// "1 class", "90 classes"
pub(super) fn classes(number: usize) -> String {
    if number == 1 { "1 class".to_owned() } else { format!("{} classes", count(number)) }
}

/// A number with its thousands apart: "1,440".
pub(super) fn count(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}

/// "`a`, `b`, `c` and 2 more"
pub(super) fn named(names: &[impl AsRef<str>]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> =
        names.iter().take(SHOWN).map(|name| format!("`{}`", name.as_ref())).collect();
    let more = names.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {} more", count(more)) } else { String::new() };
    shown.join(", ") + &more
}

/// A name that folders and experiments may have, from that of the file or folder at `path`.
pub(super) fn name_of(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let stem = stem(&path).to_lowercase();
    let kept = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = stem.chars().map(kept).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "experiment".to_owned() } else { name.to_owned() }
}

/// Lines of a comment, of at most 100 columns.
pub(super) fn comment(text: &str) -> String {
    let mut lines = vec!["#".to_owned()];
    for word in text.split_whitespace() {
        let is_full = lines.last().is_some_and(|line| line.len() + 1 + word.len() > 100);
        if is_full {
            lines.push("#".to_owned());
        }
        if let Some(line) = lines.last_mut() {
            line.extend([" ", word]);
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        for (number, words) in [(0, "0"), (999, "999"), (1440, "1,440"), (1_115_394, "1,115,394")] {
            assert_eq!(count(number), words);
        }
    }

    #[test]
    fn a_name_has_letters_digits_and_dashes() {
        for (path, name) in [
            ("data/animals22", "animals22"),
            ("ETTh1.csv", "etth1"),
            ("houses.csv.gz", "houses"),
            ("My photos (new)", "my-photos--new"),
            ("...", "experiment"),
        ] {
            assert_eq!(name_of(Path::new(path)), name, "{path}");
        }
    }
}
