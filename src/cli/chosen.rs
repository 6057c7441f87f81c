//! The checkpoint that a word names, and its run: the same for `eval`, `predict`, `sample` and
//! `checkpoint export`.

use std::path::Path;

use crate::checkpoint::{self, Opened};
use crate::cli::run_files::{enter_found, unreadable};
use crate::cli::{Refusal, find_run, to_stderr};
use crate::launch::exit_code as exit;
use crate::runs::{self, Meant, StoredRun, Which, has_checkpoint, meant, run_of};

/// A checkpoint.
pub(crate) struct Chosen {
    pub(crate) opened: Opened,
    /// Its run, if that is here.
    run: Option<StoredRun>,
}

/// The checkpoint that `word` names ([`meant`]); without a word one of the newest run that has any,
/// which is said. Of a run it is the best, or the newest, if that is asked for or no best one is
/// kept. Goes to where the run's paths begin. Where the newest one is damaged, the newest intact
/// one is taken, which is said; a `strict` choice is then refused.
pub(crate) fn chosen(word: Option<&str>, newest: bool, strict: bool) -> Result<Chosen, Refusal> {
    let found = found(word, newest)?;
    say_passed_over(&found.opened, strict)?;
    let ema = found.run.as_ref().and_then(|run| run.plan.ema);
    if let Some(young) = ema.and_then(|ema| ema.young(found.opened.state.updates)) {
        to_stderr(&format!("warning: {young}"));
    }
    Ok(found)
}

/// Says that an intact checkpoint takes the place of newer ones, or refuses it.
pub(crate) fn say_passed_over(opened: &Opened, strict: bool) -> Result<(), Refusal> {
    let Some(first) = opened.passed_over.first() else { return Ok(()) };
    if strict {
        let page = format!(
            "error: {}\n  do: put an intact copy of it there, or omit `--strict` to use the one of \
             step {}",
            first.damage, opened.state.step
        );
        return Err(Refusal::new(exit::CHECKPOINT, page));
    }
    to_stderr(&format!("warning: {}", first.words(opened.state.step)));
    Ok(())
}

fn found(word: Option<&str>, newest: bool) -> Result<Chosen, Refusal> {
    let unusable = |error| unreadable(&error);
    match word.map_or(Meant::Run("", Which::Any), meant) {
        Meant::Run(name, which) => {
            let folder = find_run::best_run_that(word.map(|_| name), &has_checkpoint)?;
            let run = enter_found(&folder)?;
            if word.is_none() {
                to_stderr(&format!("run {} of `{}`", run.run.id, run.run.logs.display()));
            }
            let opened = run.checkpoint(which.or_newest(newest)).map_err(unusable)?;
            Ok(Chosen { opened, run: Some(run) })
        }
        Meant::Checkpoint(path) => {
            let opened = checkpoint::open(&path).map_err(|error| unusable(error.into()))?;
            Ok(Chosen { opened, run: path.parent().and_then(entered).transpose()? })
        }
        Meant::Folder(path, which) => {
            let run = entered(&path).transpose()?;
            let plan = run.as_ref().map(|run| &run.plan.checkpoint);
            let opened = runs::open(&path, plan, which.or_newest(newest)).map_err(unusable)?;
            Ok(Chosen { opened, run })
        }
    }
}

/// The run that keeps its checkpoints in `folder`, if it is here.
fn entered(folder: &Path) -> Option<Result<StoredRun, Refusal>> {
    run_of(folder, Path::new(find_run::LOGS)).map(|logs| enter_found(&logs))
}

impl Chosen {
    /// The run of the checkpoint.
    pub(crate) fn run(&self) -> Result<&StoredRun, Refusal> {
        self.run.as_ref().ok_or_else(|| {
            let page = format!(
                "error: the run of `{}` is not here\n  do: copy its logs beside it, as \
                 `logs/<name>/<time>-<id>`",
                self.opened.path.display()
            );
            Refusal::new(exit::REFUSED, page)
        })
    }
}
