//! With which numbers, and by which algorithms, products and convolutions are computed.

use serde::{Deserialize, Serialize};

/// Numbers of matrix products and convolutions; everything else is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// f32.
    Fp32,
    /// bfloat16 operands and results, f32 accumulation.
    Bf16,
    /// half-precision operands and results, f32 accumulation.
    Fp16,
}

/// How convolutions are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Convolutions {
    /// The fastest algorithm for each shape. Winograd's is among them, with some thirty times the
    /// rounding of a plain sum.
    Fast,
    /// Plain sums of products only.
    Direct,
}
