//! How a rotary position embedding is stretched for longer texts.

use serde::{Deserialize, Serialize};

/// How the wavelengths of a rotary embedding are stretched, by the names of `HuggingFace`'s
/// `rope_scaling`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "snake_case")]
pub enum RopeScaling {
    /// Not at all.
    #[default]
    None,
    /// All alike: positions count 1 / factor.
    Linear {
        /// How far.
        factor: f64,
    },
    /// Long ones only, and those in between in part (Llama 3.1).
    Llama3 {
        /// How far the longest.
        factor: f64,
        /// Wavelengths longer than `original_max_position_embeddings` divided by it are long.
        low_freq_factor: f64,
        /// Wavelengths shorter than `original_max_position_embeddings` divided by it stay.
        high_freq_factor: f64,
        /// Positions of the first training.
        original_max_position_embeddings: f64,
    },
}

impl RopeScaling {
    /// The frequency, in radians per position, that stands for `frequency`.
    pub fn stretched(self, frequency: f64) -> f64 {
        match self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: positions,
            } => {
                let turns = positions * frequency / std::f64::consts::TAU;
                // 0 for the long wavelengths, 1 for the short ones.
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - kept) * frequency / factor + kept * frequency
            }
        }
    }

    /// Four numbers that are equal for equal scalings only.
    pub fn numbers(self) -> [f64; 4] {
        match self {
            Self::None => [0.0; 4],
            Self::Linear { factor } => [factor, 0.0, 0.0, 0.0],
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => [factor, low_freq_factor, high_freq_factor, original_max_position_embeddings],
        }
    }
}
