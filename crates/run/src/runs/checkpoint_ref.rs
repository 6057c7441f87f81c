//! Checkpoints by a word of the command line or `model.pretrained`: a run and one of its
//! checkpoints, a checkpoint, or a folder of checkpoints. All commands use this.
//!
//! ```text
//! quickstart, run:quickstart, logs/quickstart/ID, ID           the best checkpoint, or the newest
//! quickstart/best, run:quickstart/latest, ID/step-00000300     the named checkpoint
//! checkpoints/quickstart/ID, checkpoints/quickstart/ID/best    the same, by its folder
//! ```

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::checkpoint::{self, OpenCheckpoint, is_checkpoint};
use crate::files;
use crate::nn::LoraConfig;
use crate::plan::{Plan, RunFolders};
use crate::record::{DESCRIPTION, is_run, newest_of, to_stderr};
use crate::runs::checkpoint_choice::{CheckpointChoice, RUN, open, split};
use crate::runs::run_ref::{LOGS, best_run_that, enter_found, find_run};
use crate::runs::stored::StoredRun;
use crate::user_error::{ErrorPage, ExitCode};

/// Link to the run's logs in a folder of checkpoints, for logs that cannot be found by their name.
pub const LINK_TO_LOGS: &str = "logs";
/// Levels above a run's checkpoint folder at which logs are searched under any folder name.
const LEVELS: usize = 3;

/// A run or a checkpoint as named by a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointRef<'a> {
    /// A run, by its folder, its name or its id.
    Run(&'a str, CheckpointChoice),
    /// A checkpoint, with links resolved.
    Checkpoint(PathBuf),
    /// A folder of checkpoints, with links resolved.
    Folder(PathBuf, CheckpointChoice),
}

impl<'a> CheckpointRef<'a> {
    /// Decides whether `word` names a run, a checkpoint or a folder of checkpoints.
    pub fn parse(word: &'a str) -> Self {
        if let Some(word) = word.strip_prefix(RUN) {
            let (run, choice) = split(word);
            return Self::Run(run, choice);
        }
        if is_checkpoint(Path::new(word)) {
            return Self::Checkpoint(real(Path::new(word)));
        }
        let (run, choice) = split(word);
        let path = Path::new(run);
        let holds_checkpoints = || checkpoint::all(path).is_ok_and(|all| !all.is_empty());
        if path.is_dir() && !is_run(path) && holds_checkpoints() {
            return Self::Folder(real(path), choice);
        }
        Self::Run(run, choice)
    }
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// Returns true if the run in this log folder has a checkpoint.
pub fn has_checkpoint(folder: &Path) -> bool {
    let checkpoints = StoredRun::seen_from_here(folder).map(|found| found.run.checkpoints);
    checkpoints.is_ok_and(|folder| checkpoint::all(&folder).is_ok_and(|all| !all.is_empty()))
}

/// Finds the logs of the run whose checkpoints are in `folder` (links resolved): by the link there,
/// beside the folder of all checkpoints, in another folder there, or by the run's id among those in
/// `logs`.
pub fn run_of(folder: &Path, logs: &Path) -> Option<PathBuf> {
    let id = folder.file_name()?;
    let name = folder.parent()?.file_name()?;
    let is_its = |logs: &PathBuf| {
        newest_of(logs, DESCRIPTION).is_file()
            && StoredRun::read(logs).is_ok_and(|stored| stored.run.id.as_str() == id)
    };
    let linked = Some(real(&folder.join(LINK_TO_LOGS)));
    let above = || folder.ancestors().skip(2);
    let beside = above().map(|root| root.join(LOGS).join(name).join(id));
    let named = above().take(LEVELS).flat_map(|root| {
        let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
        entries.map(|entry| entry.path().join(name).join(id))
    });
    let found = linked.into_iter().chain(beside).chain(named).find(is_its);
    found.or_else(|| find_run(logs, id.to_str()).ok().filter(is_its))
}

/// The run that owns `checkpoints`, if it is not the one in `logs` (an absolute path), which is
/// then a copy of its logs.
pub fn other_owner(checkpoints: &Path, logs: &Path) -> Option<PathBuf> {
    let owner = run_of(checkpoints, Path::new(LOGS));
    // One folder may be seen at two places.
    let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    let is_other = |owner: &PathBuf| owner != logs && identity(owner) != identity(logs);
    owner.and_then(|owner| owner.canonicalize().ok()).filter(is_other)
}

/// Links a run's logs from its checkpoints if [`run_of`] cannot find them by name.
pub fn link_logs(run: &RunFolders) -> Result<(), files::Error> {
    let logs = real(&run.logs);
    let checkpoints = real(&run.checkpoints);
    let Some(named) = logs.parent() else { return Ok(()) };
    let name = named.file_name().unwrap_or_default();
    let is_usual = |root: &Path| root.join(LOGS).join(name) == named;
    if checkpoints.ancestors().skip(2).any(is_usual) {
        return Ok(());
    }
    match files::swap_link(&run.checkpoints.join(LINK_TO_LOGS), &logs) {
        Err(error) if error.is_without_links() => Ok(()),
        linked => linked,
    }
}

/// An open checkpoint with its run.
pub struct ChosenCheckpoint {
    pub opened: OpenCheckpoint,
    /// The run of the checkpoint, if it is on this machine.
    run: Option<StoredRun>,
}

/// Opens the checkpoint that `word` names ([`CheckpointRef::parse`]); without a word, a checkpoint
/// of the newest run that has any, which is named on stderr.
///
/// For a run, this is its best checkpoint, or its newest if `newest` is set or no best one is kept.
/// If the newest one is damaged, this warns and opens the newest intact one; with `strict`, it
/// fails instead. Changes to the folder that the run's paths are relative to.
pub fn choose_checkpoint(
    word: Option<&str>,
    newest: bool,
    strict: bool,
) -> Result<ChosenCheckpoint, ErrorPage> {
    let found = open_named(word, newest)?;
    warn_of_skipped(&found.opened, strict)?;
    let ema = found.run.as_ref().and_then(|run| run.plan.ema);
    if let Some(young) = ema.and_then(|ema| ema.young(found.opened.state.updates)) {
        to_stderr(&format!("warning: {young}"));
    }
    Ok(found)
}

/// Warns that damaged newer checkpoints were skipped; with `strict`, refuses.
pub fn warn_of_skipped(opened: &OpenCheckpoint, strict: bool) -> Result<(), ErrorPage> {
    let Some(first) = opened.skipped.first() else { return Ok(()) };
    if strict {
        let page = format!(
            "error: {}\n  do: put an intact copy of it there, or omit `--strict` to use the one of \
             step {}",
            first.damage, opened.state.step
        );
        return Err(ErrorPage::new(ExitCode::Checkpoint, page));
    }
    to_stderr(&format!("warning: {}", first.words(opened.state.step)));
    Ok(())
}

fn open_named(word: Option<&str>, newest: bool) -> Result<ChosenCheckpoint, ErrorPage> {
    let unusable = ErrorPage::from;
    match word.map_or(CheckpointRef::Run("", CheckpointChoice::Any), CheckpointRef::parse) {
        CheckpointRef::Run(name, choice) => {
            let folder = best_run_that(word.map(|_| name), &has_checkpoint)?;
            let run = enter_found(&folder)?;
            if word.is_none() {
                to_stderr(&format!("run {} of `{}`", run.run.id, run.run.logs.display()));
            }
            let opened = run.checkpoint(choice.or_newest(newest)).map_err(unusable)?;
            Ok(ChosenCheckpoint { opened, run: Some(run) })
        }
        CheckpointRef::Checkpoint(path) => {
            let opened = checkpoint::open(&path).map_err(|error| unusable(error.into()))?;
            Ok(ChosenCheckpoint { opened, run: path.parent().and_then(entered).transpose()? })
        }
        CheckpointRef::Folder(path, choice) => {
            let run = entered(&path).transpose()?;
            let plan = run.as_ref().map(|run| &run.plan.checkpoint);
            let opened = open(&path, plan, choice.or_newest(newest)).map_err(unusable)?;
            Ok(ChosenCheckpoint { opened, run })
        }
    }
}

/// Enters the run whose checkpoints are in `folder`, if it is on this machine.
fn entered(folder: &Path) -> Option<Result<StoredRun, ErrorPage>> {
    run_of(folder, Path::new(LOGS)).map(|logs| enter_found(&logs))
}

impl ChosenCheckpoint {
    /// The run of the checkpoint.
    pub fn run(&self) -> Result<&StoredRun, ErrorPage> {
        self.run.as_ref().ok_or_else(|| {
            let page = format!(
                "error: the run of `{}` is not here\n  do: copy its logs beside it, as \
                 `logs/<name>/<time>-<id>`",
                self.opened.path.display()
            );
            ErrorPage::new(ExitCode::Refused, page)
        })
    }

    /// The averaged weights, or the weights if there are no averages.
    pub fn averaged(&self) -> Result<Vec<u8>, ErrorPage> {
        checkpoint::averaged_model(&self.opened).map_err(ErrorPage::from)
    }

    /// [`ChosenCheckpoint::averaged`] without the weights below adapters.
    pub fn averaged_adapters(&self) -> Result<Vec<u8>, ErrorPage> {
        checkpoint::averaged_adapters(&self.opened).map_err(ErrorPage::from)
    }

    /// The plan of the run.
    pub fn plan(&self) -> Result<&Plan, ErrorPage> {
        self.run().map(|run| &run.plan)
    }

    /// The adapters of the run and the folder of the weights that it started from.
    pub fn adapters(&self) -> Result<(LoraConfig, Option<PathBuf>), ErrorPage> {
        let run = self.run()?;
        let without = || {
            let page = format!("error: `{}` has no adapters", self.opened.path.display());
            ErrorPage::new(
                ExitCode::Refused,
                page + "\n  do: export it without `--peft` and `--merge`",
            )
        };
        let base = run.plan.model.pretrained.as_deref().and_then(Path::parent).map(Path::to_owned);
        Ok((run.lora().and_then(|lora| lora.resolved()).ok_or_else(without)?, base))
    }
}
