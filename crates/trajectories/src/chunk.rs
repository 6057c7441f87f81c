//! Recorded and generated behaviour, and the numbers by which it is cut into samples.

use std::path::PathBuf;

use crate::config::kind::OptionConflict;
use crate::data::Chunk;

/// Reason why there are no predictions of behaviour.
pub(crate) const ACTS: &str = "a policy acts: use `ddprun sample`";

/// Source of episodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Arrays of an npz file, or columns of a parquet file or of a folder of such.
    Recorded {
        /// The file or folder.
        file: PathBuf,
        /// Cameras whose images are seen, too.
        cameras: Vec<String>,
    },
    /// Generated: a disc is pushed to a goal, around it from either side.
    PushTLike {
        /// Number of episodes.
        episodes: usize,
        /// Seed of starts and sides.
        seed: u64,
        /// Pixels of a picture's side, which shows the disc; `None` = numbers say where it is.
        image_size: Option<usize>,
    },
}

impl Behaviour {
    /// The numbers of a file or folder.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn recorded(file: PathBuf) -> Self {
        Self::Recorded { file, cameras: Vec::new() }
    }

    /// Seed of a simulation.
    pub(crate) fn seed(&self) -> Option<u64> {
        match self {
            Self::Recorded { .. } => None,
            Self::PushTLike { seed, .. } => Some(*seed),
        }
    }
}

/// Default of `data.horizon`: these are the authors' numbers for Push-T.
pub(crate) fn horizon() -> usize {
    16
}

pub(crate) fn n_obs_steps() -> usize {
    2
}

pub(crate) fn n_action_steps() -> usize {
    8
}

pub(crate) fn val_ratio() -> f64 {
    0.1
}

/// Checks that the actions that are executed were predicted.
pub(crate) fn check(chunk: Chunk) -> Vec<OptionConflict> {
    let needed = chunk.n_obs_steps.saturating_add(chunk.n_action_steps).saturating_sub(1);
    if needed <= chunk.horizon {
        return Vec::new();
    }
    let what = format!(
        "is {}, but with `n_obs_steps` and `n_action_steps` the last action that is done is \
         number {needed}",
        chunk.horizon
    );
    vec![OptionConflict { key: "horizon", with: &["n_obs_steps", "n_action_steps"], what }]
}
