//! Recorded behaviour: how it is cut into observations and chunks of actions, and on which scale.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::schema::{Data, DataKind};

/// Ranges narrower than this are not stretched.
const NARROW: f32 = 1e-4;

/// Where behaviour comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Behaviour {
    /// Arrays of an npz file, or columns of a parquet file or of a folder of such.
    #[serde(alias = "npz")]
    Recorded {
        /// The file or folder.
        file: PathBuf,
    },
    /// Generated: a disc is pushed to a goal, around it from either side.
    PushTLike {
        /// Number of episodes.
        episodes: usize,
        /// Seed of starts and sides.
        seed: u64,
    },
}

/// How episodes are cut, by the names of diffusion policies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChunkPlan {
    /// Actions that are predicted together; the first `n_obs_steps - 1` of them are past.
    pub horizon: usize,
    /// Observations that are seen.
    pub n_obs_steps: usize,
    /// Actions that are done before the next chunk is predicted.
    pub n_action_steps: usize,
    /// Share of the episodes, the last ones, that is held back.
    pub val_ratio: f64,
}

impl ChunkPlan {
    /// As asked, else the authors' numbers for Push-T.
    pub fn of(data: &Data) -> Self {
        let or = |value: Option<u32>, default: usize| value.map_or(default, |value| value as usize);
        Self {
            horizon: or(data.horizon, 16),
            n_obs_steps: or(data.n_obs_steps, 2),
            n_action_steps: or(data.n_action_steps, 8),
            val_ratio: data.val_ratio.unwrap_or(0.1),
        }
    }
}

impl Behaviour {
    /// What `data` asks for; `None` for other kinds of data, or without a file.
    pub fn of(data: &Data, seed: u64) -> Option<Self> {
        match data.name {
            DataKind::Trajectories => data.file.clone().map(|file| Self::Recorded { file }),
            DataKind::PushTLike => {
                let episodes = data.episodes.map_or(200, |episodes| episodes as usize);
                Some(Self::PushTLike { episodes, seed })
            }
            _ => None,
        }
    }
}

/// Least and largest value of each number in the training episodes; models see -1 to 1 instead.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ranges {
    /// Of each number of an observation.
    pub observations: Vec<[f32; 2]>,
    /// Of each number of an action.
    pub actions: Vec<[f32; 2]>,
}

/// `value` on the scale from -1 to 1; a number that hardly varies is moved to 0 only.
pub fn scaled(value: f32, [low, high]: [f32; 2]) -> f32 {
    if high - low < NARROW { value - low } else { 2.0 * (value - low) / (high - low) - 1.0 }
}

/// The way back from [`scaled`].
pub fn unscaled(value: f32, [low, high]: [f32; 2]) -> f32 {
    if high - low < NARROW { value + low } else { low + f32::midpoint(value, 1.0) * (high - low) }
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
