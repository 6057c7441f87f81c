//! Files that one path names: one file, those of a folder, or those that a pattern names, in the
//! order of their names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::error::{Error, named, shown};
use crate::sources::hf_dataset::check_one_split;
use crate::sources::name_pattern::NamePattern;

/// The folder of a repository's files on the Hugging Face hub.
const DATA: &str = "data";

/// The files that a data set reads, by how they are called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileNames {
    /// Endings of the files.
    pub(crate) endings: &'static [&'static str],
    /// Endings that may follow, of packed files.
    pub(crate) packed: &'static [&'static str],
    /// A pattern of such files, for remedies.
    pub(crate) example: &'static str,
}

/// The files that `path` names, in order. Messages call them `what`.
///
/// # Errors
///
/// There is none, they are of several splits, or one of numbered shards is missing.
pub(crate) fn files_of(
    what: &'static str,
    path: &Path,
    expected: &'static str,
    called: FileNames,
) -> Result<Vec<PathBuf>, Error> {
    let missing = || Error::Missing { what, path: path.to_owned(), expected };
    if let Some(pattern) = NamePattern::of(path) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let mut names = if folder.is_dir() { names_in(folder)? } else { Vec::new() };
        names.retain(|name| pattern.matches(name));
        if names.is_empty() {
            return Err(missing());
        }
        check_pattern(&shown(path), &pattern, &names)?;
        return Ok(names.iter().map(|name| folder.join(name)).collect());
    }
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let names = [names_in(path)?, below_data(path)?].into_iter().map(|names| called.only(names));
    let Some(names) = names.into_iter().find(|names| !names.is_empty()) else {
        let what = format!("it holds no files that end in {}", called.endings.join(", "));
        let help = format!(
            "name a folder with such files, one of them, or a pattern such as `{}`",
            called.example
        );
        return Err(Error::WithHelp { path: path.to_owned(), what, help });
    };
    check_one_split(&shown(path), &names)?;
    Ok(names.iter().map(|name| path.join(name)).collect())
}

/// The files of a repository that are read where it is named as `root`, as a whole or by a pattern:
/// `listed` are all that may be meant.
pub(crate) fn files_of_repository(
    root: &str,
    listed: &[String],
    called: FileNames,
) -> Result<Vec<String>, Error> {
    let in_folder = |folder: &str| {
        let is_in = |name: &&String| name.rsplit_once('/').map_or("", |(above, _)| above) == folder;
        let mut names: Vec<String> = listed.iter().filter(is_in).cloned().collect();
        names.sort();
        called.only(names)
    };
    let names = [in_folder(""), in_folder(DATA)].into_iter().find(|names| !names.is_empty());
    let Some(names) = names else {
        let what = format!("it has no files that end in {}", called.endings.join(", "));
        let help = "name the folder of its files: `hf:ORG/NAME/FOLDER`";
        return Err(Error::WithHelp { path: root.into(), what, help: help.to_owned() });
    };
    match NamePattern::of(Path::new(root)) {
        Some(pattern) => check_pattern(root, &pattern, &names)?,
        None => check_one_split(root, &names)?,
    }
    Ok(names)
}

/// Refuses the files `names` that a pattern has found, if they are of several splits or one that it
/// names is missing.
fn check_pattern(root: &str, pattern: &NamePattern, names: &[String]) -> Result<(), Error> {
    let Some(all) = pattern.names() else { return check_one_split(root, names) };
    let found: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    let missing: Vec<String> = all.into_iter().filter(|name| !found.contains(&**name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let is = if missing.len() == 1 { "is" } else { "are" };
    let what = format!("{} {is} missing", named(&missing));
    let help = "copy or fetch them, or name fewer".to_owned();
    Err(Error::WithHelp { path: root.into(), what, help })
}

impl FileNames {
    /// Keeps the names of files that are read.
    fn only(&self, mut names: Vec<String>) -> Vec<String> {
        names.retain(|name| {
            let packed = self.packed.iter().find_map(|ending| name.strip_suffix(ending));
            let plain = packed.unwrap_or(name);
            self.endings.iter().any(|ending| plain.ends_with(ending))
        });
        names
    }
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

    const TEXTS: FileNames = FileNames {
        endings: &[".parquet", ".jsonl"],
        packed: &[".gz", ".zst"],
        example: "data/*.jsonl",
    };

    fn files(folder: &Path, path: &str) -> Result<Vec<String>, Error> {
        let found = files_of("the texts", &folder.join(path), "texts", TEXTS)?;
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
        for name in ["n/train-1.jsonl", "n/train-2.jsonl"] {
            write(name);
        }
        assert_eq!(found("n/train-{1..2}.jsonl"), ["n/train-1.jsonl", "n/train-2.jsonl"]);
        let missing = "`train-0.jsonl` is missing";
        assert_refused(files(folder.path(), "n/train-{0..1}.jsonl"), missing);
        assert_refused(
            files_of_repository("hf:a/b/n/{1..20}.jsonl", &["1.jsonl".to_owned()], TEXTS),
            "`hf:a/b/n/{1..20}.jsonl`: `2.jsonl`, `3.jsonl`",
        );
        write("none/x.txt");
        assert_refused(files(folder.path(), "none"), "no files that end in .parquet, .jsonl");
        let listed = ["README.md", "data/train-0.jsonl.zst", "x/y.jsonl"].map(str::to_owned);
        assert_eq!(
            files_of_repository("hf:a/b", &listed, TEXTS).unwrap(),
            ["data/train-0.jsonl.zst"]
        );
    }
}
