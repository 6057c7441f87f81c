//! `TrainState` <-> a folder that is complete or absent.
//!
//! ```text
//! checkpoints/<name>/<run>/step-00001000/{model.safetensors, optimizer.safetensors, state.json, MANIFEST.json}
//!                          latest -> step-00001000      best -> step-00000800
//! ```
//!
//! A checkpoint is written under another name, synced and renamed; the manifest holds each file's size
//! and BLAKE3 hash. The links are hints for people: what counts on resume is the newest folder whose
//! files are what its manifest says.

mod load;
mod manifest;
mod retention;
mod save;

pub use load::{Found, Restored, all, is_checkpoint, newest, open, restore};
pub use manifest::{Damage, Manifest};
pub use save::{Snapshot, save};

use std::path::PathBuf;

use crate::files;

/// Version of the folder's form.
pub const FORMAT: u32 = 1;

/// Why a checkpoint cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// A file of the checkpoint cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The checkpoint is not what its manifest says.
    #[error("checkpoint `{}` is damaged: {damage}", path.display())]
    Damaged {
        /// The checkpoint's folder.
        path: PathBuf,
        /// What is wrong.
        damage: Damage,
    },
    /// No checkpoint of the run can be used.
    #[error("no usable checkpoint in `{}`{}", folder.display(), list(damaged))]
    NoneUsable {
        /// The run's checkpoint folder.
        folder: PathBuf,
        /// What is wrong with those that are there, newest first.
        damaged: Vec<String>,
    },
    /// A file is whole but holds something else than expected.
    #[error("`{}` does not fit this experiment: {why}", path.display())]
    Misfit {
        /// The file.
        path: PathBuf,
        /// Which tensor or field, and how it differs.
        why: String,
    },
    /// The tensors cannot be put into a file.
    #[error("cannot write the tensors of step {step}: {why}")]
    Encode {
        /// The step.
        step: u64,
        /// Why.
        why: String,
    },
}

impl Error {
    /// Whether the disk, not the checkpoint, is to blame.
    pub fn is_storage(&self) -> bool {
        matches!(self, Self::Files(_))
    }
}

fn list(damaged: &[String]) -> String {
    damaged.iter().fold(String::new(), |list, line| list + "\n  " + line)
}
