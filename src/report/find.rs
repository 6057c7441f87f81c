//! What the user calls a run -> its folder.

use std::fs;
use std::path::{Path, PathBuf};

use super::Error;
use crate::record::{HISTORY, RESOLVED};

/// The log folder of a run, given as its folder, its id (`<time>-<id>`, or the beginning of it that
/// no other has), `<name>/<id>`, or the name or folder of its experiment, of which the newest run
/// is meant; without a word the newest run of all under `logs`.
pub(crate) fn find_run(logs: &Path, run: Option<&str>) -> Result<PathBuf, Error> {
    find_run_that(logs, run, &|_| true)
}

/// As [`find_run`]; where the newest of several is meant, of those that are `preferred`, if any is.
pub(crate) fn find_run_that(
    logs: &Path,
    run: Option<&str>,
    preferred: &dyn Fn(&Path) -> bool,
) -> Result<PathBuf, Error> {
    let newest = |runs: Vec<PathBuf>| {
        let first = runs.iter().filter(|run| preferred(run)).cloned().collect();
        newest(first).or_else(|| newest(runs))
    };
    let Some(word) = run else {
        let alone = runs(logs).into_iter().filter(|run| !is_trial(run)).collect();
        return newest(alone).ok_or_else(|| Error::NoRuns { logs: logs.to_owned() });
    };
    if is_run(Path::new(word)) {
        return Ok(PathBuf::from(word));
    }
    if let Some(inner) =
        newest(inside(Path::new(word)).into_iter().filter(|run| is_run(run)).collect())
    {
        return Ok(inner);
    }
    let all = if word.is_empty() { Vec::new() } else { runs(logs) };
    let those = |is_meant: &dyn Fn(&PathBuf) -> bool| -> Vec<PathBuf> {
        all.iter().filter(|run| is_meant(run)).cloned().collect()
    };
    if let Some(newest) = newest(those(&|run| run.parent().is_some_and(|it| it.ends_with(word)))) {
        return Ok(newest);
    }
    let begins =
        |run: &PathBuf| run.file_name().is_some_and(|id| id.to_string_lossy().starts_with(word));
    let exact = those(&|run| run.ends_with(word));
    let mut found = if exact.is_empty() { those(&begins) } else { exact };
    found.sort();
    match <[PathBuf; 1]>::try_from(found) {
        Ok([run]) => Ok(run),
        Err(found) if found.is_empty() => {
            Err(Error::NoRun { run: word.to_owned(), logs: logs.to_owned() })
        }
        Err(found) => Err(Error::SeveralRuns { run: word.to_owned(), found }),
    }
}

/// Names of experiments under `logs` that have runs, in order.
pub(crate) fn run_names(logs: &Path) -> Vec<String> {
    let has_run = |folder: &PathBuf| inside(folder).iter().any(|run| is_run(run));
    let named = inside(logs).into_iter().filter(has_run);
    let mut names: Vec<String> =
        named.filter_map(|folder| Some(folder.file_name()?.to_str()?.to_owned())).collect();
    names.sort();
    names
}

/// All `logs/<name>/<id>` that hold a run. Folders that cannot be read hold none.
fn runs(logs: &Path) -> Vec<PathBuf> {
    inside(logs).iter().flat_map(|name| inside(name)).filter(|folder| is_run(folder)).collect()
}

fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// A run has a history as soon as its ranks speak; its parent may have died before.
pub(crate) fn is_run(folder: &Path) -> bool {
    [HISTORY, RESOLVED].iter().any(|name| folder.join(name).is_file())
}

/// Whether a folder has the name of a sweep's trial, `trial-0007`; it is found only by that name.
pub(crate) fn is_trial(folder: &Path) -> bool {
    folder.file_name().and_then(|name| trial_number(name.to_str()?)).is_some()
}

/// 7 of `trial-0007`.
pub(crate) fn trial_number(id: &str) -> Option<u32> {
    id.strip_prefix("trial-")?.parse().ok()
}

/// Ids begin with the time of the start.
fn newest(runs: Vec<PathBuf>) -> Option<PathBuf> {
    runs.into_iter().max_by(|a, b| a.file_name().cmp(&b.file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;

    #[test]
    fn a_run_is_found_by_folder_id_name_or_as_the_newest() {
        let logs = tempfile::tempdir().unwrap();
        let at = |run: &str| logs.path().join(run);
        let runs = ["resnet/20260101-a", "resnet/20260301-c", "mlp/20260201-b", "sweep/trial-0001"];
        for run in runs {
            files::create_folder(&at(run)).unwrap();
            files::write_atomic(&at(run).join(HISTORY), b"{}").unwrap();
        }
        files::create_folder(&at("mlp/20270101-no-run")).unwrap();
        files::create_folder(&at("gpt/20250101-silent")).unwrap();
        files::write_atomic(&at("gpt/20250101-silent").join(RESOLVED), b"").unwrap();
        let find = |word: Option<&str>| find_run(logs.path(), word).unwrap();
        assert_eq!(find(None), at("resnet/20260301-c"));
        assert_eq!(find(Some("mlp")), at("mlp/20260201-b"));
        assert_eq!(find(Some("sweep")), at("sweep/trial-0001"));
        assert_eq!(find(Some("20260101-a")), at("resnet/20260101-a"));
        assert_eq!(find(Some("resnet/20260101-a")), at("resnet/20260101-a"));
        let path = at("mlp/20260201-b");
        assert_eq!(find(path.to_str()), path);
        assert_eq!(find(at("resnet").to_str()), at("resnet/20260301-c"));
        assert_eq!(find(Some("gpt")), at("gpt/20250101-silent"));
        let error = find_run(logs.path(), Some("vit")).unwrap_err().to_string();
        assert!(error.starts_with("there is no run `vit` under `"), "{error}");
    }

    #[test]
    fn the_beginning_of_an_id_is_enough_where_no_other_begins_like_it() {
        let logs = tempfile::tempdir().unwrap();
        let at = |run: &str| logs.path().join(run);
        let runs = ["resnet/20260101-120000-3fa2", "resnet/20260101-130000-77b0"];
        for run in runs.into_iter().chain(["a/trial-0001", "b/trial-0001"]) {
            files::create_folder(&at(run)).unwrap();
            files::write_atomic(&at(run).join(HISTORY), b"{}").unwrap();
        }
        let find = |word: &str| find_run(logs.path(), Some(word));
        assert_eq!(find("20260101-12").unwrap(), at(runs[0]));
        assert_eq!(find("b/trial-0001").unwrap(), at("b/trial-0001"));
        for (word, two) in [("20260101-1", runs), ("trial-0001", ["a/trial-0001", "b/trial-0001"])]
        {
            let message = find(word).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("`{word}` is ambiguous: 2 runs match:\n")),
                "{message}"
            );
            assert!(two.iter().all(|run| message.contains(run)), "{message}");
        }
        assert!(matches!(find("resn"), Err(Error::NoRun { .. })), "a name is not shortened");
        assert!(matches!(find(""), Err(Error::NoRun { .. })));
    }
}
