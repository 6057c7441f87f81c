//! Numbers of matrix products, the fp16 scaler, and clipping.

use serde::{Deserialize, Serialize};

use crate::config::Experiment;
use crate::config::schema::PrecisionChoice;

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

/// Clipping, after unscaling: by norm first, then by value. `None` = off.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClipPlan {
    /// Largest global L2 norm.
    pub norm: Option<f64>,
    /// Largest absolute value.
    pub value: Option<f64>,
}

/// The precision; "amp" is bf16, the best that a CPU has.
pub(crate) fn decide(experiment: &Experiment) -> Precision {
    match experiment.train.precision {
        PrecisionChoice::Fp32 => Precision::Fp32,
        PrecisionChoice::Fp16 => Precision::Fp16,
        PrecisionChoice::Bf16 | PrecisionChoice::Amp => Precision::Bf16,
    }
}

/// The scaler, which only fp16 needs.
pub(crate) fn scaler(experiment: &Experiment) -> Option<ScalerPlan> {
    let asked = &experiment.loss_scale;
    (decide(experiment) == Precision::Fp16).then_some(ScalerPlan {
        init: asked.init,
        growth_factor: asked.growth_factor,
        backoff_factor: asked.backoff_factor,
        growth_interval: asked.growth_interval,
    })
}

/// Clipping as asked.
pub(crate) fn clip(experiment: &Experiment) -> ClipPlan {
    ClipPlan { norm: experiment.train.clip_grad_norm, value: experiment.train.clip_grad_value }
}
