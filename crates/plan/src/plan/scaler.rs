//! The loss scale of fp16, PyTorch's `GradScaler`.

use serde::{Deserialize, Serialize};

use crate::config::Experiment;
use crate::config::schema::PrecisionChoice;

/// The loss scale, as PyTorch's `GradScaler` has it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScalerPlan {
    /// Initial scale.
    pub init: f64,
    /// Factor after `growth_interval` good steps in a row.
    pub growth_factor: f64,
    /// Factor after a bad step.
    pub backoff_factor: f64,
    /// Good steps in a row before the scale grows.
    pub growth_interval: u64,
}

/// The plan of `[loss_scale]`, which only fp16 needs.
pub(super) fn decide(experiment: &Experiment) -> Option<ScalerPlan> {
    let config = &experiment.loss_scale;
    (experiment.train.precision == PrecisionChoice::Fp16).then_some(ScalerPlan {
        init: config.init,
        growth_factor: config.growth_factor,
        backoff_factor: config.backoff_factor,
        growth_interval: config.growth_interval,
    })
}
