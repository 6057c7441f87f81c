//! Numeric choices of a model: precisions, algorithms of convolutions, scaling of rotary
//! embeddings.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Numbers of matrix products and convolutions; everything else is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// f32.
    Fp32,
    /// bfloat16 operands and results, f32 accumulation.
    Bf16,
    /// Half-precision operands and results, f32 accumulation.
    Fp16,
}

/// Instructions of a processor that multiply bf16 numbers; without them, f32 numbers are rounded.
/// Results differ between them in their last bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bf16Instructions {
    /// AVX512-BF16, which multiplies pairs by pairs.
    Avx512,
    /// AMX-BF16, which multiplies tiles by tiles.
    Amx,
}

impl fmt::Display for Bf16Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Avx512 => "AVX512-BF16",
            Self::Amx => "AMX",
        })
    }
}

/// Algorithms of convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Convolutions {
    /// The fastest algorithm for each shape. Winograd's is among them, with some thirty times the
    /// rounding of a plain sum.
    Fast,
    /// Plain sums of products only.
    Direct,
}

/// Scaling of the wavelengths of a rotary position embedding for longer texts, by the names of
/// `HuggingFace`'s `rope_scaling`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "snake_case")]
pub enum RopeScaling {
    /// No scaling.
    #[default]
    None,
    /// All wavelengths alike: positions are divided by `factor`.
    Linear {
        /// Factor on all wavelengths.
        factor: f64,
    },
    /// Long wavelengths only, and those in between in part (Llama 3.1).
    Llama3 {
        /// Factor on long wavelengths.
        factor: f64,
        /// Wavelengths longer than `original_max_position_embeddings` divided by it are long.
        low_freq_factor: f64,
        /// Wavelengths shorter than `original_max_position_embeddings` divided by it stay.
        high_freq_factor: f64,
        /// Context length of the original training.
        original_max_position_embeddings: f64,
    },
}

impl RopeScaling {
    /// The scaled frequency for `frequency`, in radians per position.
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

    /// A key of four numbers, equal for equal scalings only.
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
