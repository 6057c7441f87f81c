//! The file and words of a sweep -> the sweep, under a name of its own, and the experiment that its
//! trials change.

use std::path::Path;

use crate::config::sweep::Sweep;
use crate::config::{self, Loaded};
use crate::files;
use crate::kinds::Kinds;
use crate::record::{RESOLVED, newest_of};
use crate::runs::{State, find_sweep, named_run, summary};
use crate::session::experiment::follow_fallbacks;
use crate::session::mirror;
use crate::session::{follow_target, refuse_other_files};
use crate::sweep::{self, EarlierResults};
use crate::user_error::ErrorPage;

/// Reads a sweep and its base. A metric that is not given is the one that the base monitors, which
/// may follow from the target of its data.
pub fn load_sweep(
    path: &Path,
    words: &[String],
    kinds: &Kinds,
) -> Result<(Sweep, Loaded), ErrorPage> {
    refuse_other_files(path)?;
    let vocabulary = kinds.vocabulary();
    let (mut sweep, mut base) = config::sweep::load(path, words, &vocabulary)?;
    let used = follow_fallbacks(base.clone(), &sweep.changes, &vocabulary, kinds)?;
    if let Some(fallback) = base.fallback(&vocabulary).filter(|_| used.path != base.path) {
        if sweep.base == sweep.path {
            return load_sweep(&used.path, words, kinds);
        }
        let what = format!("the data of `{}` are absent", sweep.base.display());
        let help = format!("put them there, or name `{}` as `base`", fallback.display());
        return Err(ErrorPage::refused(what, help));
    }
    if base.experiment.checkpoint.mirror.is_some() {
        return Err(base
            .problem(mirror::KEY, "is for runs, not for the trials of a sweep")
            .help(
                "give `~checkpoint.mirror` to the sweep, and copy its logs and checkpoints by a \
                 command in `hooks.checkpoint_saved`",
            )
            .into());
    }
    let text = files::read_to_string(path).unwrap_or_default();
    let file: toml::Table = text.parse().unwrap_or_default();
    let is_given = file.get("sweep").is_some_and(|sweep| sweep.get("metric").is_some())
        || words.iter().any(|word| word.trim_start_matches('+').starts_with("sweep.metric="));
    // A range test compares nothing by a metric.
    if !is_given && sweep.search.method.name != "lr_range" {
        // The base of a sweep already monitors its metric.
        let alone = config::load(&sweep.base, &sweep.changes, &vocabulary);
        let mut alone = alone?;
        follow_target(&mut alone, &vocabulary, kinds);
        let monitored = &alone.experiment.checkpoint.monitor;
        if *monitored != sweep.search.metric {
            let metric = format!("sweep.metric={monitored}");
            let words: Vec<String> = words.iter().cloned().chain([metric]).collect();
            (sweep, base) = config::sweep::load(path, &words, &vocabulary)?;
        }
    }
    follow_target(&mut base, &vocabulary, kinds);
    Ok((sweep, base))
}

/// Numbers a sweep that only the command line describes, and does not name, if its usual name is
/// that of another sweep: `resnet-sweep-2`. The same command finds it again. Returns the usual name
/// then.
pub fn number_sweep(
    sweep: &mut Sweep,
    words: &[String],
    base: &Loaded,
    extend: bool,
) -> Result<Option<String>, ErrorPage> {
    let is_named = words.iter().any(|word| word.trim_start_matches('+').starts_with("sweep.name="));
    let is_file = sweep.base != sweep.path;
    let usual = sweep.name.clone();
    let mut number = 1;
    while !is_named && !is_file && sweep::is_taken(sweep, base, extend)? {
        number += 1;
        sweep.name = format!("{usual}-{number}");
    }
    Ok((number > 1).then_some(usual))
}

/// The results of the sweeps and runs that `words` name, from which a sweep over `base` starts.
pub fn earlier_results(
    words: &[String],
    sweep: &Sweep,
    base: &Loaded,
    kinds: &Kinds,
) -> Result<Vec<EarlierResults>, ErrorPage> {
    words.iter().map(|word| results_of(word, sweep, base, kinds)).collect()
}

fn results_of(
    word: &str,
    sweep: &Sweep,
    base: &Loaded,
    kinds: &Kinds,
) -> Result<EarlierResults, ErrorPage> {
    if let Some(folder) = find_sweep(Path::new(word)) {
        let own = base.experiment.logging.dir.join(&sweep.name);
        if folder.canonicalize().ok() == own.canonicalize().ok() {
            let what = format!("`{word}` is this sweep itself");
            let help = "name another sweep, or leave out `--from`: a sweep goes on from its own \
                        trials";
            return Err(ErrorPage::refused(what, help));
        }
        return Ok(EarlierResults::of_sweep(&folder)?);
    }
    let folder = named_run(Some(word))?;
    let summary = summary(&folder)?;
    let refused = |what: &str| {
        let help = "name a run that has finished, or a sweep";
        Err(ErrorPage::refused(format!("`{}` {what}", folder.display()), help))
    };
    if summary.state != State::Finished {
        return refused("has not finished");
    }
    let path = newest_of(&folder, RESOLVED);
    let text = files::read_to_string(&path).map_err(files::Error::io("read", &path))?;
    let loaded = config::load_text(&path, &text, &[], &kinds.vocabulary())?;
    let devices = summary.devices.len() as u32;
    let per_epoch = summary.steps_per_epoch;
    let results = EarlierResults::of_run(&folder, &loaded, &sweep.search, per_epoch, devices)?;
    results.map_or_else(|| refused(&format!("never reported `{}`", sweep.search.metric)), Ok)
}

/// The refusal of a range test, which has no trials that could be shared.
pub fn one_run() -> ErrorPage {
    let what = "a learning-rate range test is one run, and only the trials of a \
                sweep can be shared";
    ErrorPage::refused(what, "run `ddprun sweep` without `--share`")
}
