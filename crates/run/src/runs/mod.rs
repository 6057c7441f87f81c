//! Runs as their folders show them: description, state and metrics, also of a run that is still
//! running or was killed.
//!
//! ```text
//! folder ──find──▶ folders of runs ──summary──▶ Summary         name, state, best, duration, tags
//!                                  ──config───▶ TOML            its resolved experiment
//!                                  ──Scalars──▶ series by step  its metrics so far
//! ```
//!
//! Nothing here writes into a run, except [`retag`], into a file of its own.
//! ```
//! use ddprun_run::runs::{self, State};
//!
//! let listing = runs::list("logs".as_ref());
//! for run in listing.runs.iter().filter(|run| run.state == State::Failed) {
//!     println!("{}: {}", run.id, run.reason.as_deref().unwrap_or("-"));
//! }
//! ```

mod config;
mod checkpoint_choice;
mod run_ref;
mod list;
mod saves;
mod scalars;
mod summary;
mod sweeps;
mod tags;
mod words;
mod remove;
mod compare;
mod stored;
mod checkpoint_ref;

use std::path::{Path, PathBuf};

pub use checkpoint_choice::{RUN, nearest, open, split};
pub use checkpoint_ref::{
    CheckpointRef, ChosenCheckpoint, LINK_TO_LOGS, choose_checkpoint, has_checkpoint, link_logs,
    other_owner, run_of, warn_of_skipped,
};
pub use compare::{ComparedRun, Comparison, LastAndBest, Rows, distinct_runs};
pub use config::{Difference, config, differences, leaves};
pub use list::{FolderScan, Listing, Unreadable, find, in_words, list, other_runs, trials};
pub use remove::{Removal, leftovers};
pub use run_ref::{
    LOGS, best_run, best_trial, enter_best_run, enter_run, find_range_test, find_run,
    find_run_that, find_sweep, is_experiment, is_name, named_run, nearest_run, nearest_sweep,
    of_experiment, run_names,
};
pub use saves::longest_save;
pub use scalars::{Point, Reader, Scalars};
pub use stored::{
    Stored, StoredRun, checkpoints_folder, checkpoints_of, project_of, weights_before,
};
pub use summary::{Best, State, Summary, summary, summary_of};
pub use sweeps::{SweepSummary, sweep_summary};
pub use tags::{NAME as TAGS, Retagged, retag, tags};
pub use words::{named_checkpoints, or_checkpoint, split_inputs};

use crate::checkpoint;
use crate::files;
use crate::record::{self, NewerFormat};
use crate::report;
use crate::sweep;
use crate::user_error::{ExitCode, UserError};

/// Why a run cannot be read, or tagged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// The records of the run cannot be read.
    #[error(transparent)]
    Record(#[from] record::Error),
    /// The records of the run cannot be read.
    #[error(transparent)]
    Report(#[from] report::Error),
    /// The sweep cannot be read.
    #[error(transparent)]
    Sweep(#[from] sweep::Error),
    /// A file of a newer ddprun.
    #[error(transparent)]
    Newer(#[from] NewerFormat),
    /// A file of another format.
    #[error("`{}` cannot be understood: {why}", path.display())]
    Damaged {
        path: PathBuf,
        /// The first difference.
        why: String,
    },
    /// A file that cannot be used.
    #[error("`{}` cannot be used: {why}", path.display())]
    Unusable { path: PathBuf, why: String },
    /// No checkpoint can be used.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// The best checkpoint is requested, but none is kept.
    #[error("no best checkpoint is kept in `{}`", folder.display())]
    NoBest {
        /// The run's checkpoint folder.
        folder: PathBuf,
    },
    /// No checkpoint of that step is kept.
    #[error("no checkpoint `{}` is kept in `{}`", checkpoint::name(*step), folder.display())]
    NoStep {
        /// The run's checkpoint folder.
        folder: PathBuf,
        step: u64,
        /// Steps of the checkpoints that are kept.
        kept: Vec<u64>,
    },
    /// There is no such run.
    #[error("there is no run `{run}` under `{}`", logs.display())]
    NoRun {
        /// The name that was given.
        run: String,
        /// Folder of all runs' logs.
        logs: PathBuf,
    },
    /// Several runs have this name.
    #[error("`{run}` is ambiguous: {} runs match:{}", found.len(), each_on_a_line(found))]
    SeveralRuns {
        /// The name that was given.
        run: String,
        /// Folders of the runs.
        found: Vec<PathBuf>,
    },
    /// There is no run at all.
    #[error("there is no run under `{}`", logs.display())]
    NoRuns {
        /// Folder of all runs' logs.
        logs: PathBuf,
    },
    /// A word that cannot be a tag.
    #[error("`{tag}` is not a tag")]
    NotATag {
        /// The word.
        tag: String,
    },
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::NotATag { .. }
            | Self::NoRun { .. }
            | Self::SeveralRuns { .. }
            | Self::NoRuns { .. } => ExitCode::Refused,
            _ => ExitCode::Checkpoint,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::NoBest { .. } => Some("use `/latest`".to_owned()),
            Self::NoStep { kept, .. } if !kept.is_empty() => {
                let names: Vec<String> = kept.iter().map(|&step| checkpoint::name(step)).collect();
                Some(format!("choose one of {}", names.join(", ")))
            }
            Self::NoStep { .. } => {
                Some("train the run again: no checkpoint of it is left".to_owned())
            }
            Self::Checkpoint(checkpoint::Error::NoneUsable { damaged, .. }) => {
                let help = if damaged.is_empty() {
                    "put the run's checkpoints back there, or train it again; `ddprun ls` lists \
                     the runs"
                } else {
                    "put whole ones back there, or train the run again"
                };
                Some(help.to_owned())
            }
            Self::Checkpoint(error) => error.help(),
            Self::Files(files::Error::Io { reason, .. })
                if reason.kind() == std::io::ErrorKind::NotFound =>
            {
                let help = "put back what is missing there, or name another run; `ddprun ls` lists \
                            the runs";
                Some(help.to_owned())
            }
            _ => None,
        }
    }
}

impl Error {
    fn damaged(path: &Path, why: &impl ToString) -> Self {
        Self::Damaged { path: path.to_owned(), why: why.to_string() }
    }
}

/// Lists the folders, one per line; the last ones if there are too many.
fn each_on_a_line(folders: &[PathBuf]) -> String {
    const MAX_LINES: usize = 10;
    let shown = folders.iter().rev().take(MAX_LINES).rev();
    let lines: Vec<String> = shown.map(|folder| format!("\n  {}", folder.display())).collect();
    let more = folders.len().saturating_sub(MAX_LINES);
    let before = if more > 0 { format!("\n  {more} older ones, and") } else { String::new() };
    before + &lines.concat()
}

/// Reads the file at `path`; `None` if there is none.
fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match files::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(reason) if reason.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(reason) => Err(files::Error::io("read", path)(reason).into()),
    }
}

/// Serializes a path as text, with bytes that are not UTF-8 replaced.
fn as_text<S: serde::Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}
