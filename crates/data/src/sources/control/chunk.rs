//! Recorded behaviour: how it is cut into observations and chunks of actions, and on which scale.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::kind::{OptionConflict, Options};
use crate::plan::{Cameras, PixelStats, SourcePlan};

/// Reason why there are no predictions of behaviour.
pub(super) const ACTS: &str = "a policy acts: use `ddprun sample`";

/// Ranges narrower than this are not stretched.
const MIN_RANGE: f32 = 1e-4;

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
    pub(super) fn seed(&self) -> Option<u64> {
        match self {
            Self::Recorded { .. } => None,
            Self::PushTLike { seed, .. } => Some(*seed),
        }
    }
}

/// Cutting of episodes into samples, by the names of diffusion policies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    /// Actions that are predicted together; the first `n_obs_steps - 1` of them are past.
    pub horizon: usize,
    /// Observations that are seen.
    pub n_obs_steps: usize,
    /// Actions that are done before the next chunk is predicted.
    pub n_action_steps: usize,
    /// Share of the episodes, the last ones, that is held back.
    pub val_ratio: f64,
}

/// The authors' numbers for Push-T.
impl Chunk {
    pub(super) fn horizon() -> usize {
        16
    }

    pub(super) fn n_obs_steps() -> usize {
        2
    }

    pub(super) fn n_action_steps() -> usize {
        8
    }

    pub(super) fn val_ratio() -> f64 {
        0.1
    }
}

impl Chunk {
    /// Checks that the actions that are executed were predicted.
    pub(super) fn check(self) -> Vec<OptionConflict> {
        let needed = self.n_obs_steps.saturating_add(self.n_action_steps).saturating_sub(1);
        if needed <= self.horizon {
            return Vec::new();
        }
        let what = format!(
            "is {}, but with `n_obs_steps` and `n_action_steps` the last action that is done is \
             number {needed}",
            self.horizon
        );
        vec![OptionConflict { key: "horizon", with: &["n_obs_steps", "n_action_steps"], what }]
    }
}

/// Settings that a trained policy needs to act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    pub chunk: Chunk,
    /// Scale of the numbers: a trained policy sees and acts on that of its training episodes.
    pub ranges: Ranges,
    /// Seed of the simulation that the data come from; `None` if they were recorded.
    #[serde(default)]
    pub simulated: Option<u64>,
    /// The images of an observation as they are before transforms, if it has some.
    #[serde(default)]
    pub cameras: Option<Cameras>,
    /// Pixel statistics that normalize images if no transform does it; `None` in runs from before
    /// they were measured.
    #[serde(default)]
    pub pixels: Option<PixelStats>,
}

impl Policy {
    /// Key of the policy among the survey's results.
    pub(super) const FOUND: &'static str = "policy";

    /// The policy of a plan; `None` if its data are no behaviour.
    pub fn of(source: &SourcePlan) -> Option<Self> {
        Self::found(&source.survey)
    }

    /// Reads the policy from the survey's results.
    pub(super) fn found(found: &Options) -> Option<Self> {
        Self::deserialize(found.get(Self::FOUND)?).ok()
    }
}

/// Least and largest value of each number in the training episodes; models see -1 to 1 instead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranges {
    /// Range of each number of an observation.
    pub observations: Vec<[f32; 2]>,
    /// Range of each number of an action.
    pub actions: Vec<[f32; 2]>,
}

/// `value` on the scale from -1 to 1; a number that hardly varies is moved to 0 only.
pub fn scaled(value: f32, [low, high]: [f32; 2]) -> f32 {
    if high - low < MIN_RANGE { value - low } else { 2.0 * (value - low) / (high - low) - 1.0 }
}

/// The way back from [`scaled`].
pub fn unscaled(value: f32, [low, high]: [f32; 2]) -> f32 {
    if high - low < MIN_RANGE {
        value + low
    } else {
        low + f32::midpoint(value, 1.0) * (high - low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_minus_one_to_one_and_constants_zero() {
        assert_eq!([3.0, 4.0, 5.0].map(|value| scaled(value, [3.0, 5.0])), [-1.0, 0.0, 1.0]);
        assert_eq!(scaled(7.0, [7.0, 7.0]), 0.0);
        for range in [[3.0, 5.0], [7.0, 7.0]] {
            assert!((unscaled(scaled(4.5, range), range) - 4.5).abs() < 1e-6);
        }
    }
}
