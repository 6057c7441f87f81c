//! Numbers of matrix products, the fp16 scaler, and clipping.

use serde::{Deserialize, Serialize};
use train_numbers::{Bf16Instructions, Precision};

use crate::config::Experiment;
use crate::config::schema::PrecisionChoice;
use crate::plan::Facts;
use crate::plan::distributed::Ranks;

/// PyTorch's `GradScaler`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalerPlan {
    /// First scale.
    pub init: f64,
    /// Factor after `growth_interval` good steps in a row.
    pub growth_factor: f64,
    /// Factor after a bad step.
    pub backoff_factor: f64,
    /// Good steps in a row.
    pub growth_interval: u64,
}

/// What is done to gradients after unscaling: clipped by norm, made noisy, clipped by value. `None`
/// = off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClipPlan {
    /// Largest global L2 norm.
    pub norm: Option<f64>,
    /// Largest absolute value.
    pub value: Option<f64>,
    /// Variance of the noise in the first step.
    #[serde(default)]
    pub noise: Option<f64>,
}

impl From<Precision> for PrecisionChoice {
    fn from(precision: Precision) -> Self {
        match precision {
            Precision::Fp32 => Self::Fp32,
            Precision::Bf16 => Self::Bf16,
            Precision::Fp16 => Self::Fp16,
        }
    }
}

/// The precision; "amp" is bf16 where it is known to be faster: on GPUs, and on CPUs whose
/// instructions for it do more work than those for f32. Without any, bf16 is f32 that is rounded,
/// and slower.
pub(crate) fn decide(experiment: &Experiment, ranks: &Ranks, facts: &Facts) -> Precision {
    match experiment.train.precision {
        PrecisionChoice::Fp16 => Precision::Fp16,
        PrecisionChoice::Bf16 => Precision::Bf16,
        PrecisionChoice::Amp if ranks.on_gpus() || facts.bf16_is_faster => Precision::Bf16,
        PrecisionChoice::Fp32 | PrecisionChoice::Amp => Precision::Fp32,
    }
}

/// The instructions that a plan uses.
pub(crate) fn instructions(
    experiment: &Experiment,
    ranks: &Ranks,
    facts: &Facts,
) -> Option<Bf16Instructions> {
    let is_bf16 = decide(experiment, ranks, facts) == Precision::Bf16;
    if is_bf16 && !ranks.on_gpus() { facts.bf16 } else { None }
}

/// The scaler, which only fp16 needs.
pub(crate) fn scaler(experiment: &Experiment) -> Option<ScalerPlan> {
    let asked = &experiment.loss_scale;
    (experiment.train.precision == PrecisionChoice::Fp16).then_some(ScalerPlan {
        init: asked.init,
        growth_factor: asked.growth_factor,
        backoff_factor: asked.backoff_factor,
        growth_interval: asked.growth_interval,
    })
}

/// Clipping and noise as asked.
pub(crate) fn clip(experiment: &Experiment) -> ClipPlan {
    let train = &experiment.train;
    let norm = train.clip_grad_norm;
    let value = train.clip_grad_value;
    let noise = train.gradient_noise;
    ClipPlan { norm, value, noise }
}
