//! The files of a text, which may be in parts: one file, those of a folder, or those that a pattern
//! names, in the order of their names.

use std::path::{Path, PathBuf};

use crate::error::{Error, shown};
use crate::sources::hf_dataset::check_one_split;

/// Endings of files with entries; `.gz` or `.zst` may follow.
const ENDINGS: [&str; 3] = [".parquet", ".jsonl", ".json"];
/// Endings of packed files.
const PACKED: [&str; 2] = [".gz", ".zst"];
/// The folder of a repository's files on the Hugging Face hub.
const DATA: &str = "data";

/// The files that `path` names, in order. Messages call them `what`.
///
/// # Errors
///
/// There is none, they are of several splits, or one of numbered shards is missing.
pub(super) fn files_of(
    what: &'static str,
    path: &Path,
    expected: &'static str,
) -> Result<Vec<PathBuf>, Error> {
    let missing = || Error::Missing { what, path: path.to_owned(), expected };
    if let Some(pattern) = pattern_of(path) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let mut names = if folder.is_dir() { names_in(folder)? } else { Vec::new() };
        names.retain(|name| matches_pattern(pattern, name));
        if names.is_empty() {
            return Err(missing());
        }
        check_one_split(&shown(path), &names)?;
        return Ok(names.iter().map(|name| folder.join(name)).collect());
    }
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let names = [names_in(path)?, below_data(path)?].into_iter().map(with_entries);
    let Some(names) = names.into_iter().find(|names| !names.is_empty()) else {
        let what = format!("it holds no files that end in {}", ENDINGS.join(", "));
        let help =
            "name a folder with such files, one of them, or a pattern such as `data/*.jsonl`";
        return Err(Error::WithHelp { path: path.to_owned(), what, help: help.to_owned() });
    };
    check_one_split(&shown(path), &names)?;
    Ok(names.iter().map(|name| path.join(name)).collect())
}

/// The files of a repository that are read where it is named as a whole: `listed` are all.
pub(super) fn files_of_repository(root: &str, listed: &[String]) -> Result<Vec<String>, Error> {
    let in_folder = |folder: &str| {
        let is_in = |name: &&String| name.rsplit_once('/').map_or("", |(above, _)| above) == folder;
        let mut names: Vec<String> = listed.iter().filter(is_in).cloned().collect();
        names.sort();
        with_entries(names)
    };
    let names = [in_folder(""), in_folder(DATA)].into_iter().find(|names| !names.is_empty());
    let Some(names) = names else {
        let what = format!("it has no files that end in {}", ENDINGS.join(", "));
        let help = "name the folder of its files: `hf:ORG/NAME/FOLDER`";
        return Err(Error::WithHelp { path: root.into(), what, help: help.to_owned() });
    };
    check_one_split(root, &names)?;
    Ok(names)
}

/// The last part of a path, if it is a pattern.
pub fn pattern_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str().filter(|name| name.contains('*'))
}

/// True if `name` is what `pattern` says, in which `*` stands for any signs.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    let places = name.char_indices().map(|(at, _)| at).chain([name.len()]);
    places.into_iter().any(|at| matches_pattern(rest, &name[at..]))
}

/// Keeps the names of files that can hold entries.
fn with_entries(mut names: Vec<String>) -> Vec<String> {
    names.retain(|name| {
        let plain = PACKED.iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
        ENDINGS.iter().any(|ending| plain.ends_with(ending))
    });
    names
}

/// Names of the files in a folder, sorted, hidden ones left out.
fn names_in(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| Error::Io { action: "list", path: folder.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && entry.path().is_file() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The files in the folder `data` of a folder, as a repository has them.
fn below_data(folder: &Path) -> Result<Vec<String>, Error> {
    let data = folder.join(DATA);
    if !data.is_dir() {
        return Ok(Vec::new());
    }
    Ok(names_in(&data)?.into_iter().map(|name| format!("{DATA}/{name}")).collect())
}

#[cfg(test)]
mod tests {
    use test_support::assert_refused;

    use super::*;

    #[test]
    fn a_star_stands_for_any_signs() {
        for name in ["train-0.jsonl", "train.jsonl", "train-a-b.jsonl"] {
            assert!(matches_pattern("train*.jsonl", name), "{name}");
        }
        for name in ["test-0.jsonl", "train-0.jsonl.gz", "train"] {
            assert!(!matches_pattern("train*.jsonl", name), "{name}");
        }
        assert!(matches_pattern("*", "ä") && matches_pattern("a*b*c", "a1b2bc"));
        assert!(!matches_pattern("a*b*c", "ab") && matches_pattern("a.parquet", "a.parquet"));
    }

    fn files(folder: &Path, path: &str) -> Result<Vec<String>, Error> {
        let found = files_of("the texts", &folder.join(path), "texts")?;
        let name = |path: &PathBuf| path.strip_prefix(folder).unwrap().display().to_string();
        Ok(found.iter().map(name).collect())
    }

    #[test]
    fn a_file_a_folder_and_a_pattern_name_files_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            crate::files::create_parent(&path).unwrap();
            crate::files::write_atomic(&path, b"").unwrap();
        };
        for name in ["b.jsonl.gz", "a.parquet", "README.md", ".hidden.jsonl", "sub/c.jsonl"] {
            write(name);
        }
        let found = |path: &str| files(folder.path(), path).unwrap();
        assert_eq!(found("a.parquet"), ["a.parquet"]);
        assert_eq!(found(""), ["a.parquet", "b.jsonl.gz"]);
        assert_eq!(found("*.gz"), ["b.jsonl.gz"]);
        assert_eq!(found("absent.jsonl"), ["absent.jsonl"], "who opens it says that it is absent");
        assert_refused(files(folder.path(), "*.zst"), "does not exist");
        for name in ["repo/README.md", "repo/data/train-00001-of-00002.parquet"] {
            write(name);
        }
        assert_refused(files(folder.path(), "repo"), "`data/train-00000-of-00002.parquet` is");
        write("repo/data/train-00000-of-00002.parquet");
        let both =
            ["repo/data/train-00000-of-00002.parquet", "repo/data/train-00001-of-00002.parquet"];
        assert_eq!(found("repo"), both);
        write("repo/data/test-00000-of-00001.parquet");
        assert_refused(files(folder.path(), "repo"), "several splits: `test`, `train`");
        assert_eq!(found("repo/data/train*"), both);
        write("none/x.txt");
        assert_refused(files(folder.path(), "none"), "no files that end in .parquet, .jsonl");
        let listed = ["README.md", "data/train-0.jsonl.zst", "x/y.jsonl"].map(str::to_owned);
        assert_eq!(files_of_repository("hf:a/b", &listed).unwrap(), ["data/train-0.jsonl.zst"]);
    }
}
