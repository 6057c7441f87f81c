//! `TrainState` <-> a folder that is complete or absent.
//!
//! ```text
//! checkpoints/<name>/<run>/step-00001000/{model.safetensors, optimizer.safetensors, state.json, MANIFEST.json}
//!                          latest -> step-00001000      best -> step-00000800
//! ```
//!
//! A checkpoint is written under another name, synced and renamed; the manifest holds the size and
//! the BLAKE3 hash of each tensor. The links are hints for people: what counts on resume is the
//! newest folder whose files are what its manifest says, and the best one is that of the best
//! manifest.
//!
//! The training thread only copies its state ([`Writer::save`]); a thread of its own writes the
//! copy.

mod adapters;
mod base;
mod difference;
mod state_copy;
mod entries;
mod links;
mod load;
mod manifest;
mod retention;
mod save;
mod tensors;
mod verify;
mod contents;
mod background_writer;

pub use adapters::{merged, peft, peft_config};
pub use background_writer::{Overdue, Writer};
pub use base::BaseFile;
pub use contents::{Contents, contents};
pub use load::{
    OpenCheckpoint, PIN, all, average, averaged_adapters, averaged_model, best, best_or_newest,
    best_until, bring, copy, held_checkpoint, hold_checkpoint, is_checkpoint, model, newest, open,
    open_complete, pin, restore, restore_newest, restore_newest_part, restore_part, verify,
};
pub use manifest::{Damage, Manifest, parse};
pub use save::{Destination, name, save};
pub use state_copy::Snapshot;
pub use tensors::{Tensor, tensors};
#[cfg(any(test, feature = "fuzzing"))]
pub use {manifest::sealed_anew, tensors::header_of};

use std::path::{Path, PathBuf};

use crate::files;
use crate::nn::state_dict;
use crate::user_error::{ExitCode, UserError};

/// Version of the folder's form.
pub const FORMAT: u32 = 3;

pub const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "state.json";
/// The files of a checkpoint beside its manifest.
pub(crate) const FILES: [&str; 3] = [MODEL, OPTIMIZER, STATE];

/// Importance of a checkpoint; a more important one is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Importance {
    /// It was time.
    Regular,
    /// No earlier state of the run was better.
    Best,
}

/// A failure to write or use a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Files(#[from] files::Error),
    /// A file of the checkpoint cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The checkpoint is not what its manifest says.
    #[error("checkpoint `{}` is damaged: {damage}", path.display())]
    Damaged {
        /// The checkpoint's folder.
        path: PathBuf,
        damage: Damage,
    },
    /// The run to which the checkpoint belongs has deleted it while it was looked for.
    #[error("checkpoint `{}` is gone: its run has deleted it meanwhile", path.display())]
    Gone {
        /// The checkpoint's folder.
        path: PathBuf,
    },
    /// No checkpoint of the run can be used.
    #[error("no usable checkpoint in `{}`{}", folder.display(), list(damaged))]
    NoneUsable {
        /// The run's checkpoint folder.
        folder: PathBuf,
        /// Damage of those that are there, newest first.
        damaged: Vec<String>,
    },
    /// A file is whole but holds something else than expected.
    #[error("`{}` does not fit this experiment: {why}", path.display())]
    Misfit {
        path: PathBuf,
        /// The tensor or field, and its difference.
        why: String,
    },
    /// The weights below the adapters of a checkpoint cannot be read.
    #[error("the weights `{}`, on which the adapters were trained, cannot be used: {source}", path.display())]
    Base {
        path: PathBuf,
        #[source]
        source: Box<state_dict::Error>,
    },
    /// Other weights than those that the adapters of a checkpoint were trained on.
    #[error(
        "the adapters were not trained on `{}`, whose weights have the hash {found:.16}, but on \
         `{}`, {expected:.16}", path.display(), base.display()
    )]
    OtherBase {
        path: PathBuf,
        /// BLAKE3 of its tensors.
        found: String,
        /// The file when the run began.
        base: PathBuf,
        /// BLAKE3 of the tensors that were there.
        expected: String,
    },
    /// The state cannot be put into files.
    #[error("cannot write the state of step {step}: {why}")]
    Encode { step: u64, why: String },
    /// The weights have no meaning any more.
    #[error("`{name}` is not finite after step {step}: refusing to save it")]
    NotFinite {
        step: u64,
        /// The first parameter or buffer.
        name: String,
    },
    /// An earlier checkpoint could not be written.
    #[error("no checkpoint is written any more, as an earlier one could not be")]
    WriterEnded,
    /// The writer's thread cannot be started.
    #[error("cannot start the thread that writes checkpoints: {0}")]
    Thread(#[source] std::io::Error),
}

impl Error {
    /// Returns what makes an error of damage of the checkpoint in `folder`.
    fn damaged(folder: &Path) -> impl Fn(Damage) -> Self {
        move |damage| Self::Damaged { path: folder.to_owned(), damage }
    }

    /// True if the disk, not the checkpoint, is to blame.
    pub fn is_storage(&self) -> bool {
        matches!(self, Self::Files(_))
    }

    /// True if this checkpoint is not what was written, so that the one before it may serve.
    fn is_damage(&self) -> bool {
        let is_newer = |damage: &Damage| matches!(damage, Damage::Newer { .. });
        matches!(self, Self::Damaged { damage, .. } if !is_newer(damage))
    }
}

impl UserError for Error {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Files(_) => ExitCode::Storage,
            Self::NotFinite { .. } => ExitCode::Numeric,
            Self::Thread(_) => ExitCode::Resource,
            _ => ExitCode::Checkpoint,
        }
    }

    fn help(&self) -> Option<String> {
        match self {
            Self::Damaged { path, .. } => {
                let intact = load::intact_beside(path)?;
                Some(format!(
                    "use `{}`, which is intact, or put a whole copy back",
                    intact.display()
                ))
            }
            Self::Base { .. } | Self::OtherBase { .. } => {
                Some("put the file back, or a link to it (`ln -s`)".to_owned())
            }
            _ => None,
        }
    }
}

fn list(damaged: &[String]) -> String {
    damaged.iter().fold(String::new(), |list, line| list + "\n  " + line)
}
