//! What a word names: a run, a sweep, or the best trial of one.

use std::path::{Path, PathBuf};

use crate::cli::{Refusal, to_stderr};
use crate::launch::exit_code as exit;
use crate::plan::RunFolders;
use crate::runs::{self, Found, RUN};
use crate::{report, sweep};

/// Where runs are looked for by their names.
pub(crate) const LOGS: &str = RunFolders::LOGS;

/// The folder of the sweep that `word` names: its folder, or its name, with or without `run:`.
pub(crate) fn find_sweep(word: &Path) -> Option<PathBuf> {
    let name = word.to_str().and_then(|word| word.strip_prefix(RUN));
    let word = name.map_or(word, Path::new);
    named(word, &|folder| folder.join(sweep::JOURNAL).is_file())
}

/// The folder of the learning-rate range test that `word` names: its folder, or its name.
pub(crate) fn find_range_test(word: &Path) -> Option<PathBuf> {
    named(word, &sweep::is_range_test)
}

/// The folder, or that of this name in `logs`, which is what is meant.
fn named(word: &Path, is_meant: &dyn Fn(&Path) -> bool) -> Option<PathBuf> {
    [word.to_owned(), Path::new(LOGS).join(word)].into_iter().find(|folder| is_meant(folder))
}

/// All sweeps, the one that was last written to at the end.
fn sweeps() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(LOGS).into_iter().flatten().flatten();
    let written = |folder: PathBuf| {
        let journal = std::fs::metadata(folder.join(sweep::JOURNAL)).ok()?;
        Some((journal.modified().ok()?, folder))
    };
    let mut found: Vec<_> = entries.filter_map(|entry| written(entry.path())).collect();
    found.sort();
    found.into_iter().map(|(_, folder)| folder).collect()
}

/// The log folder of the run that `word` names; of a sweep of its best trial, which is said.
pub(crate) fn best_run(word: Option<&str>) -> Result<PathBuf, Refusal> {
    best_run_that(word, &|_| true)
}

/// As [`best_run`]; where the newest of several is meant, of those that are `preferred`, if any is.
pub(crate) fn best_run_that(
    word: Option<&str>,
    preferred: &dyn Fn(&Path) -> bool,
) -> Result<PathBuf, Refusal> {
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
pub(crate) fn best_trial(word: &str) -> Result<PathBuf, Refusal> {
    best_of(word).map(|(folder, _)| folder)
}

/// The best trial of a sweep, and in words which one it is.
fn best_of(word: &str) -> Result<(PathBuf, String), Refusal> {
    let folder = find_sweep(Path::new(word)).unwrap_or_else(|| PathBuf::from(word));
    let story = sweep::status(&folder)
        .map_err(|error| Refusal::of(exit::CHECKPOINT, &error, error.help()))?
        .story;
    let metric = &story.subject.metric;
    let Some(best) = sweep::best(&story.trials, story.subject.goal) else {
        let page = format!(
            "error: no trial of the sweep `{0}` has finished\n  do: name a trial, such as \
             `{0}/{1}`",
            folder.display(),
            sweep::id(1)
        );
        return Err(Refusal::new(exit::REFUSED, page));
    };
    let run = folder.join(best.id());
    if !report::is_run(&run) {
        let left = |trial: &&sweep::Trial| report::is_run(&folder.join(trial.id()));
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
        return Err(Refusal::new(exit::REFUSED, page));
    }
    let said = format!(
        "the best of {} trials: `{}`, {metric} {}",
        story.trials.len(),
        run.display(),
        sweep::reached(best, &story.trials, story.subject.goal, metric)
    );
    Ok((run, said))
}

/// The log folder of the run that `word` names: itself, an experiment's name (its newest run), a
/// run's id or the beginning of one, each with or without `run:`; without a word that of the newest
/// run of all below `logs/`.
pub(crate) fn run(word: Option<&str>) -> Result<PathBuf, Refusal> {
    run_that(word, &|_| true)
}

fn run_that(word: Option<&str>, preferred: &dyn Fn(&Path) -> bool) -> Result<PathBuf, Refusal> {
    let word = word.map(|word| word.strip_prefix(RUN).unwrap_or(word));
    report::find_run_that(Path::new(LOGS), word, preferred).map_err(|error| {
        let help = match (sweeps().last(), word.and_then(nearest)) {
            _ if word.is_some_and(is_experiment) => of_experiment(word.unwrap_or_default()),
            (_, Some(near)) if word == Some(near.as_str()) => {
                let (run, _) = runs::split(&near);
                format!("name the run itself, `{run}`: `{near}` is one of its checkpoints")
            }
            (_, Some(near)) if matches!(error, report::Error::NoRun { .. }) => {
                format!("did you mean `{near}`?")
            }
            (Some(sweep), _) if word.is_none() => {
                format!("see the newest sweep with `ddprun report {}`", sweep.display())
            }
            _ if matches!(error, report::Error::NoRuns { .. }) => {
                "train one with `ddprun EXPERIMENT.toml`, or call ddprun in the folder that holds \
                 your `logs`"
                    .to_owned()
            }
            _ => "give the run's name, its folder, or a unique prefix of its id; `ddprun ls` \
                  lists the runs"
                .to_owned(),
        };
        Refusal::of(exit::REFUSED, &error, Some(help))
    })
}

/// Whether a word is the name of an experiment or a sweep that has runs, and no way to a folder.
pub(crate) fn is_name(word: &str) -> bool {
    let names = report::run_names(Path::new(LOGS));
    names.iter().any(|name| Path::new(name) == Path::new(word))
}

/// Whether a word is the file of an experiment.
pub(crate) fn is_experiment(word: &str) -> bool {
    let path = Path::new(word);
    path.extension().is_some_and(|end| end == "toml") && path.is_file()
}

/// What to write in the place of an experiment's file.
pub(crate) fn of_experiment(file: &str) -> String {
    let stem = Path::new(file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let near = nearest(&stem).map_or(String::new(), |near| format!(", such as `{near}`"));
    format!("name a run of that experiment{near}; `ddprun ls` lists the runs")
}

/// The name of a sweep that is nearly `word`.
pub(crate) fn nearest_sweep(word: &str) -> Option<String> {
    let name = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let names: Vec<String> = sweeps().iter().filter_map(name).collect();
    runs::nearest(word, &names)
}

/// The name of an experiment or the id of a run that is nearly `word`.
pub(crate) fn nearest(word: &str) -> Option<String> {
    let Found { runs, sweeps } = runs::find(Path::new(LOGS));
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let names = runs.iter().filter_map(|run| name(run.parent()?));
    let all: Vec<String> =
        names.chain(runs.iter().chain(&sweeps).filter_map(|path| name(path))).collect();
    runs::nearest(word, &all)
}
