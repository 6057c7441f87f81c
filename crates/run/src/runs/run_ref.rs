//! Runs, sweeps and best trials by a word of the command line, as their log folders.

use std::fs;
use std::path::{Path, PathBuf};

use crate::plan::RunFolders;
use crate::record::{is_run, to_stderr};
use crate::runs::Error;
use crate::runs::checkpoint_choice::{RUN, nearest, split};
use crate::runs::list::{FolderScan, find};
use crate::runs::stored::StoredRun;
use crate::sweep::{self, is_trial};
use crate::user_error::{ErrorPage, ExitCode};

/// Folder in which runs are found by their names.
pub const LOGS: &str = RunFolders::LOGS;

/// The folder of the sweep that `word` names: its folder, or its name, with or without `run:`.
pub fn find_sweep(word: &Path) -> Option<PathBuf> {
    let name = word.to_str().and_then(|word| word.strip_prefix(RUN));
    let word = name.map_or(word, Path::new);
    named(word, &|folder| folder.join(sweep::JOURNAL).is_file())
}

/// The folder of the learning-rate range test that `word` names: its folder, or its name.
pub fn find_range_test(word: &Path) -> Option<PathBuf> {
    named(word, &sweep::is_range_test)
}

/// `word` or the folder of this name in `logs`, whichever `is_meant` accepts first.
fn named(word: &Path, is_meant: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    [word.to_owned(), Path::new(LOGS).join(word)].into_iter().find(|folder| is_meant(folder))
}

/// Finds the log folder of the run that `word` names. For a sweep, that is the folder of its best
/// trial, which a line on stderr names.
pub fn best_run(word: Option<&str>) -> Result<PathBuf, ErrorPage> {
    best_run_that(word, &|_| true)
}

/// Like [`best_run`], but where the newest of several runs is meant, takes the newest `preferred`
/// one, if any.
pub(crate) fn best_run_that(
    word: Option<&str>,
    preferred: &dyn Fn(&Path) -> bool,
) -> Result<PathBuf, ErrorPage> {
    match word.filter(|word| find_sweep(Path::new(word)).is_some()) {
        None => run_that(word, preferred),
        Some(sweep) => {
            let (folder, said) = best_of(sweep)?;
            to_stderr(&said);
            Ok(folder)
        }
    }
}

/// The log folder of the best trial of the sweep that `word` names.
pub fn best_trial(word: &str) -> Result<PathBuf, ErrorPage> {
    best_of(word).map(|(folder, _)| folder)
}

/// The log folder of the best trial of a sweep, and a line that names it.
fn best_of(word: &str) -> Result<(PathBuf, String), ErrorPage> {
    let folder = find_sweep(Path::new(word)).unwrap_or_else(|| PathBuf::from(word));
    let story = sweep::status(&folder).map_err(|error| ErrorPage::from_error(&error))?.story;
    let metric = &story.subject.metric;
    let Some(best) = sweep::best(&story.trials, story.subject.goal) else {
        let page = format!(
            "error: no trial of the sweep `{0}` has finished\n  do: name a trial, such as \
             `{0}/{1}`",
            folder.display(),
            sweep::id(1)
        );
        return Err(ErrorPage::new(ExitCode::Refused, page));
    };
    let run = folder.join(best.id());
    if !is_run(&run) {
        let left = |trial: &&sweep::Trial| is_run(&folder.join(trial.id()));
        let left: Vec<sweep::Trial> = story.trials.iter().filter(left).cloned().collect();
        let next = sweep::best(&left, story.subject.goal).map_or(String::new(), |next| {
            format!(
                "\n  do: name another trial; the best that is left is `{}`, {metric} {}",
                folder.join(next.id()).display(),
                sweep::reached(next, &left, story.subject.goal, metric)
            )
        });
        let page = format!(
            "error: `{}`, the best trial of the sweep `{}`, was removed{next}",
            run.display(),
            folder.display()
        );
        return Err(ErrorPage::new(ExitCode::Refused, page));
    }
    let said = format!(
        "the best of {} trials: `{}`, {metric} {}",
        story.trials.len(),
        run.display(),
        sweep::reached(best, &story.trials, story.subject.goal, metric)
    );
    Ok((run, said))
}

/// Finds the log folder of a run by its path, its experiment's name (the newest run), or the
/// beginning of its id, each with or without `run:`; without a word, that of the newest run below
/// `logs/`.
pub fn named_run(word: Option<&str>) -> Result<PathBuf, ErrorPage> {
    run_that(word, &|_| true)
}

fn run_that(word: Option<&str>, preferred: &dyn Fn(&Path) -> bool) -> Result<PathBuf, ErrorPage> {
    let word = word.map(|word| word.strip_prefix(RUN).unwrap_or(word));
    find_run_that(Path::new(LOGS), word, preferred).map_err(|error| {
        let modified =
            |sweep: &PathBuf| fs::metadata(sweep.join(sweep::JOURNAL)).ok()?.modified().ok();
        let newest_sweep = || find(Path::new(LOGS)).sweeps.into_iter().max_by_key(modified);
        let help = match (newest_sweep(), word.and_then(nearest_run)) {
            _ if word.is_some_and(is_experiment) => of_experiment(word.unwrap_or_default()),
            (_, Some(near)) if word == Some(near.as_str()) => {
                let (run, _) = split(&near);
                format!("name the run itself, `{run}`: `{near}` is one of its checkpoints")
            }
            (_, Some(near)) if matches!(error, Error::NoRun { .. }) => {
                format!("did you mean `{near}`?")
            }
            (Some(sweep), _) if word.is_none() => {
                format!("see the newest sweep with `ddprun report {}`", sweep.display())
            }
            _ if matches!(error, Error::NoRuns { .. }) => {
                "train one with `ddprun EXPERIMENT.toml`, or call ddprun in the folder that holds \
                 your `logs`"
                    .to_owned()
            }
            _ => "give the run's name, its folder, or a unique prefix of its id; `ddprun ls` \
                  lists the runs"
                .to_owned(),
        };
        ErrorPage::of(ExitCode::Refused, &error).help(help)
    })
}

/// The run that `word` names ([`named_run`]). Changes to the folder that its paths are relative to,
/// so that they hold wherever ddprun is called from.
pub fn enter_run(word: Option<&str>) -> Result<StoredRun, ErrorPage> {
    enter_found(&named_run(word)?)
}

/// Like [`enter_run`]; for a sweep, its best trial.
pub fn enter_best_run(word: Option<&str>) -> Result<StoredRun, ErrorPage> {
    enter_found(&best_run(word)?)
}

/// Like [`enter_run`], for the run in this log folder.
pub(crate) fn enter_found(folder: &Path) -> Result<StoredRun, ErrorPage> {
    let (stored, root) = StoredRun::rooted(folder)?;
    if let Some(root) = root {
        std::env::set_current_dir(&root).map_err(|error| {
            let page = format!("error: cannot change to `{}`\n  why: {error}", root.display());
            ErrorPage::new(ExitCode::Storage, page)
        })?;
        to_stderr(&format!("the paths of this run begin at `{}`", root.display()));
    }
    Ok(stored)
}

/// Returns true if `word` is the name of an experiment or a sweep with runs, not a path.
pub fn is_name(word: &str) -> bool {
    let names = run_names(Path::new(LOGS));
    names.iter().any(|name| Path::new(name) == Path::new(word))
}

/// Returns true if `word` is the path of an experiment's file.
pub fn is_experiment(word: &str) -> bool {
    let path = Path::new(word);
    path.extension().is_some_and(|end| end == "toml") && path.is_file()
}

/// Help for a user who gave an experiment's file where a run is expected.
pub fn of_experiment(file: &str) -> String {
    let stem = Path::new(file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let near = nearest_run(&stem).map_or(String::new(), |near| format!(", such as `{near}`"));
    format!("name a run of that experiment{near}; `ddprun ls` lists the runs")
}

/// The name of a sweep that is nearly `word`.
pub fn nearest_sweep(word: &str) -> Option<String> {
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    // Deeper ones cannot be named without their path.
    let is_named = |path: &&PathBuf| path.parent() == Some(Path::new(LOGS));
    let FolderScan { sweeps, .. } = find(Path::new(LOGS));
    let names: Vec<String> = sweeps.iter().filter(is_named).filter_map(name).collect();
    nearest(word, &names)
}

/// The name of an experiment or the id of a run that is nearly `word`.
pub fn nearest_run(word: &str) -> Option<String> {
    let FolderScan { runs, sweeps } = find(Path::new(LOGS));
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let names = runs.iter().filter_map(|run| name(run.parent()?));
    let all: Vec<String> =
        names.chain(runs.iter().chain(&sweeps).filter_map(|path| name(path))).collect();
    nearest(word, &all)
}

/// Finds the log folder of a run by its path, its id (`<time>-<id>` or an unambiguous beginning of
/// it), `<name>/<id>`, or the name or folder of its experiment, which means the newest run; without
/// a word, that of the newest run under `logs`.
pub fn find_run(logs: &Path, run: Option<&str>) -> Result<PathBuf, Error> {
    find_run_that(logs, run, &|_| true)
}

/// Like [`find_run`], but where the newest of several runs is meant, takes the newest `preferred`
/// one, if any.
pub fn find_run_that(
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

/// Names of experiments with runs under `logs`, sorted.
pub fn run_names(logs: &Path) -> Vec<String> {
    let has_run = |folder: &PathBuf| inside(folder).iter().any(|run| is_run(run));
    let named = inside(logs).into_iter().filter(has_run);
    let mut names: Vec<String> =
        named.filter_map(|folder| Some(folder.file_name()?.to_str()?.to_owned())).collect();
    names.sort();
    names
}

/// All runs `logs/<name>/<id>`. Unreadable folders count as empty.
fn runs(logs: &Path) -> Vec<PathBuf> {
    inside(logs).iter().flat_map(|name| inside(name)).filter(|folder| is_run(folder)).collect()
}

fn inside(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The newest run: ids begin with the time of the start.
fn newest(runs: Vec<PathBuf>) -> Option<PathBuf> {
    runs.into_iter().max_by(|a, b| a.file_name().cmp(&b.file_name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files;
    use crate::record::{HISTORY, RESOLVED};

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
