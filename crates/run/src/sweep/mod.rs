//! `[sweep]` -> many experiments, scheduled on the devices, pruned, ranked, resumable.
//!
//! ```text
//! Sweep ──method──▶ values ──Trainer──▶ ranks of one trial ──reports──▶ pruner
//!            ▲                                                    │
//!            └──────────────── journal.jsonl ◀───── ended ────────┘ ──▶ table, pictures, best.toml
//! ```
//!
//! One parent owns everything: it draws the values, so that all ranks of a trial have the same; it
//! starts the ranks of every trial itself, each trial watched by a thread of its own, so that
//! nothing outlives it; and it writes down each decision before it acts on it, so that it can be
//! killed at any moment.
//! ```
//! use ddprun_plan::config::sweep::Domain;
//! use ddprun_run::sweep::value_at;
//! // What a search method draws is a share of each parameter's domain.
//! let rates = Domain::LogUniform { min: 1e-4, max: 1e-2 };
//! let middle = value_at(&rates, 0.5).as_f64().unwrap();
//! assert!((middle - 1e-3).abs() < 1e-12);
//! ```

mod changes;
mod chart;
mod sampler;
mod contrast;
mod coordinates;
mod earlier;
#[cfg(test)]
mod example_sweeps;
mod folder;
mod importance;
mod journal;
mod method;
mod request;
mod parzen;
mod ped_anova;
mod pictures;
mod pruner;
mod race;
mod range_test;
mod ranking;
mod repeated_search;
mod repeats;
mod results;
mod trial_scheduler;
mod status;
mod table;
mod tell;
mod trial_events;
mod trial_rows;
mod trial;
mod view;
mod workers;

use std::path::PathBuf;

pub use contrast::{Contrast, ContrastRow, Typical, contrast};
pub use earlier::EarlierResults;
pub use folder::{is_of_sweep, refuse_runs};
pub use importance::importance;
pub use journal::{JournalState, NAME as JOURNAL, SweepSpec, read};
pub use method::{
    Gp, Grid, List, LrRange, Method, MethodFamily, Methods, ProposalRequest, Random, Tpe, points,
};
pub use pruner::{Asha, Median, NoPruner, Pruner, PrunerFamily, Pruners, Running};
pub use range_test::{
    Point, RangeTestResult, files_of as range_test_files, find, is_in as is_range_test,
    page as range_test_page, read as read_range_test, run as run_range_test,
    words as range_test_words,
};
pub use ranking::{Ranking, best};
pub(crate) use repeats::reached;
pub use request::{Cause, Job, Machine, Outcome, SweepEnd, SweepRequest, Trainer, visible_gpus};
pub use results::{BEST, JSON, summary};
pub use sampler::{BaseValues, Tried, at as value_at, is_allowed, random};
pub use status::{Status, status};
pub use tell::{TrialResult, tell};
pub use trial::{Length, Report, State, Trial, cost, id, is_trial, trial_number};
pub use trial_rows::CSV;
pub use trial_scheduler::{Answer, ask, is_taken, run};
pub use view::values_of;
pub use workers::{count as count_workers, run as run_shared};

use crate::config::values::Interval;
use crate::files;
use crate::record;
use crate::registry::Unbuildable;
use crate::report;
use crate::terminal::counted;
use crate::user_error::{ExitCode, UserError};

/// Why a sweep cannot be run or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be written or read.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// The records of a trial cannot be read.
    #[error(transparent)]
    Record(#[from] record::Error),
    /// A picture could not be drawn.
    #[error(transparent)]
    Report(#[from] report::Error),
    /// A file of a newer ddprun.
    #[error(transparent)]
    Newer(#[from] record::NewerFormat),
    /// A file of another format.
    #[error("`{}` is not a sweep's journal", path.display())]
    NotAJournal { path: PathBuf },
    /// There is no sweep.
    #[error("there is no sweep in `{}`", folder.display())]
    NoSweep { folder: PathBuf },
    /// The folder holds a sweep of something else.
    #[error("`{}` holds another sweep:{}", folder.display(), list(changes))]
    Changed {
        /// The sweep's folder.
        folder: PathBuf,
        /// The differences.
        changes: Vec<String>,
        /// True if `--extend` allows it.
        can_extend: bool,
    },
    /// The folder has runs of an experiment.
    #[error("`{}` already holds runs of an experiment, such as `{}`", folder.display(), run.display())]
    HoldsRuns {
        /// The folder that the sweep would have.
        folder: PathBuf,
        /// The first of these runs.
        run: PathBuf,
    },
    /// The folder of a sweep cannot be that of a range test, nor the other way round.
    #[error(
        "`{}` holds {held}: {asked} would write over its first trial and its results",
        folder.display()
    )]
    Occupied {
        folder: PathBuf,
        /// The present contents.
        held: &'static str,
        /// The requested contents.
        asked: &'static str,
    },
    /// Checkpoints of trials whose sweep is gone.
    #[error(
        "`{}` holds the checkpoints of an earlier sweep, whose records are gone",
        folder.display()
    )]
    Leftovers {
        /// The folder of the first such trial.
        folder: PathBuf,
    },
    /// Earlier results that cannot be compared with those of this sweep.
    #[error("the results in `{}` cannot be compared with those of this sweep:{}", folder.display(), list(reasons))]
    NotComparable {
        /// The folder of the sweep or run.
        folder: PathBuf,
        /// The differences.
        reasons: Vec<String>,
    },
    /// The data are not those that earlier trials were trained on.
    #[error("the data changed since `{}` was trained:{}", folder.display(), list(differences))]
    OtherData {
        /// The records of an earlier trial.
        folder: PathBuf,
        /// The differences.
        differences: Vec<String>,
    },
    /// Experiments that cannot be run.
    #[error("{} cannot be run:{}", counted(trials.len() as u64, "trial"), list(trials))]
    Refused {
        /// A line per trial with its values and the reason.
        trials: Vec<String>,
    },
    /// The experiment that trials change cannot be run, whatever their values are.
    #[error("no trial can be run, because the experiment that all of them change cannot:\n  {why}")]
    Base { why: String },
    /// A pruner that could give up no trial.
    #[error("`sweep.pruner.min_resource` is {least}, and no trial is longer than {longest}")]
    NeverPruned {
        /// `min_resource`.
        least: Interval,
        /// Length of the longest trial.
        longest: Interval,
    },
    /// A method or pruner that is not registered.
    #[error(transparent)]
    Kind(#[from] Unbuildable),
    /// The constraints leave nothing.
    #[error("no values satisfy the constraints")]
    NothingLeft,
    /// A trial has had the values of another one.
    #[error("{} has these values: it would give the same numbers", named(*trial))]
    Tried {
        /// `None` for an earlier result of another sweep or run.
        trial: Option<u32>,
    },
    /// A trial that the sweep does not have.
    #[error("there is no trial {trial}: the sweep has {}", counted(*n as u64, "trial"))]
    NoTrial {
        trial: u32,
        /// Number of trials that it has.
        n: usize,
    },
    /// A trial that has its result.
    #[error("trial {trial} has {end} already")]
    Ended {
        trial: u32,
        /// Its state.
        end: &'static str,
    },
    /// A trial that ddprun trains.
    #[error("trial {trial} is being trained by {holder}")]
    UnderWay {
        trial: u32,
        /// The process.
        holder: String,
    },
    /// A value that has no written form.
    #[error("cannot write `{what}` as JSON")]
    Encode {
        /// Name of the file.
        what: &'static str,
        /// The value.
        #[source]
        reason: serde_json::Error,
    },
    /// The system gives no thread or no signal.
    #[error("cannot {what}")]
    System {
        /// Completes "cannot ...".
        what: &'static str,
        #[source]
        reason: std::io::Error,
    },
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::OtherData { .. } => ExitCode::Data,
            _ if self.is_refusal() => ExitCode::Refused,
            _ => ExitCode::Storage,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Changed { can_extend: true, .. } => Some(
                "add `--extend` to keep the trials and continue with the new search, or start \
                 from scratch with another `sweep.name`"
                    .to_owned(),
            ),
            Self::Changed { .. } => Some(
                "choose another `sweep.name`: trials of different experiments cannot be compared"
                    .to_owned(),
            ),
            Self::NoSweep { .. } => Some(
                "name the folder of another one; `ddprun ls` lists the sweeps below `logs`"
                    .to_owned(),
            ),
            Self::HoldsRuns { .. } => Some(
                "choose another `sweep.name`: a sweep does not share its folder with other runs"
                    .to_owned(),
            ),
            Self::Occupied { .. } => Some("choose another `sweep.name`".to_owned()),
            Self::Leftovers { folder } => {
                let sweep = folder.parent().unwrap_or(folder).display();
                Some(format!("remove `{sweep}`, or choose another `sweep.name`"))
            }
            Self::OtherData { .. } => Some(
                "restore the original data, or start over with another `sweep.name`: metrics on \
                 different data cannot be compared"
                    .to_owned(),
            ),
            Self::NotComparable { .. } => Some(
                "choose a sweep or run of the same experiment, or write its best settings as \
                 `[[sweep.start]]`"
                    .to_owned(),
            ),
            Self::Refused { .. } => {
                Some("change the space, or exclude such trials with `sweep.constraints`".to_owned())
            }
            Self::Tried { .. } => Some("choose other values".to_owned()),
            Self::NoTrial { .. } => {
                Some("`ddprun sweep ask` gives a trial, and its number".to_owned())
            }
            Self::Ended { .. } => {
                Some("`ddprun report` shows its result, which stays as it is".to_owned())
            }
            Self::UnderWay { .. } => Some("its result is recorded when it ends".to_owned()),
            Self::Base { .. } => {
                Some("change that experiment, or add `KEY=VALUE` for all trials".to_owned())
            }
            Self::NeverPruned { .. } => {
                Some("choose a smaller `min_resource`, or `sweep.pruner=none`".to_owned())
            }
            Self::NothingLeft => Some("loosen `sweep.constraints`".to_owned()),
            Self::Files(files::Error::InUse { .. }) => {
                Some("wait for that process, or stop it".to_owned())
            }
            Self::Files(_) => Some(
                "choose a folder that can be written, with `logging.dir` and `checkpoint.dir`"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

impl Error {
    /// A failure of the operating system in `what`, which completes "cannot ...".
    fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |reason| Self::System { what, reason }
    }

    /// True if the sweep was refused before anything was touched.
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Changed { .. }
                | Self::HoldsRuns { .. }
                | Self::Occupied { .. }
                | Self::Leftovers { .. }
                | Self::OtherData { .. }
                | Self::NotComparable { .. }
                | Self::Refused { .. }
                | Self::Base { .. }
                | Self::NeverPruned { .. }
                | Self::Kind(_)
                | Self::NothingLeft
                | Self::Tried { .. }
                | Self::NoTrial { .. }
                | Self::Ended { .. }
                | Self::UnderWay { .. }
                | Self::Newer(_)
                | Self::NotAJournal { .. }
                | Self::NoSweep { .. }
                | Self::Files(files::Error::InUse { .. })
        )
    }
}

fn named(trial: Option<u32>) -> String {
    trial.map_or_else(|| "an earlier result".to_owned(), |number| format!("trial {number}"))
}

fn list(lines: &[String]) -> String {
    /// Lines that are shown.
    const MAX_LINES: usize = 8;
    let mut text = String::new();
    for line in lines.iter().take(MAX_LINES) {
        text += &format!("\n  {line}");
    }
    if lines.len() > MAX_LINES {
        text += &format!("\n  ... and {} more", lines.len() - MAX_LINES);
    }
    text
}
