//! The loss scale of fp16.

use serde::{Deserialize, Serialize};

use crate::config::Experiment;
use crate::config::schema::PrecisionChoice;

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

/// The scaler, which only fp16 needs.
pub(crate) fn decide(experiment: &Experiment) -> Option<ScalerPlan> {
    let asked = &experiment.loss_scale;
    (experiment.train.precision == PrecisionChoice::Fp16).then_some(ScalerPlan {
        init: asked.init,
        growth_factor: asked.growth_factor,
        backoff_factor: asked.backoff_factor,
        growth_interval: asked.growth_interval,
    })
}
