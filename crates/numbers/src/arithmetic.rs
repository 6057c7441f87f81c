//! Numeric choices of a model: precisions, algorithms of convolutions.

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
