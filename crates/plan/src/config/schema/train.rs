//! `[train]`: for how long, in which batches and precision.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use train_numbers::Convolutions;

use crate::config::values::{Auto, Duration};

/// `[train]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Train {
    /// Passes over the data.
    pub epochs: Option<u64>,
    /// Optimizer steps, instead of epochs.
    pub steps: Option<u64>,
    /// Wall-clock budget, instead of or beside them: "2h".
    pub time: Option<Duration>,
    /// Samples per pass per rank.
    pub batch_size: Auto<u32>,
    /// Samples per step over all ranks and passes.
    pub global_batch_size: Auto<u32>,
    /// Passes per step.
    pub gradient_accumulation_steps: Auto<u32>,
    /// Largest global L2 norm of the gradients.
    pub clip_grad_norm: Option<f64>,
    /// Largest absolute value of a gradient element.
    pub clip_grad_value: Option<f64>,
    /// Variance of Gaussian noise on the gradients of the first step.
    pub gradient_noise: Option<f64>,
    /// Numbers of matrix products and convolutions.
    pub precision: PrecisionChoice,
    /// How convolutions are computed.
    #[schemars(with = "String", extend("enum" = ["fast", "direct"]))]
    pub convolutions: Convolutions,
    /// Keep only the inputs of a model's blocks, and run the blocks again in backward.
    pub activation_checkpointing: bool,
    /// Whether passes on a GPU are recorded once and replayed.
    pub cuda_graph: Auto<bool>,
    /// What to do about a loss or gradient that is not finite (beyond fp16's skipped steps).
    pub on_non_finite: OnNonFinite,
}

/// `train.precision`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PrecisionChoice {
    /// 32-bit everywhere.
    Fp32,
    /// bfloat16 autocast.
    Bf16,
    /// half-precision autocast with a gradient scaler.
    Fp16,
    /// The fastest that the device has: bf16 on GPUs, on CPUs with AMX and on AMD's with
    /// AVX512-BF16, else fp32.
    Amp,
}

/// Policy for losses and gradients that are not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnNonFinite {
    /// Stop all ranks, exit 4.
    Stop,
    /// Leave the parameters as they are and go on with the next step.
    Skip,
}
