//! Gradient clipping, and noise that is added to gradients.

use serde::{Deserialize, Serialize};

use crate::config::Experiment;
use crate::terminal::format_number;

/// Changes of gradients after unscaling, in this order: clipping by norm, noise, clipping by value.
/// `None` = off.
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

impl ClipPlan {
    /// ", clipped to norm 1.0, noise 0.3"
    pub(super) fn line(&self) -> String {
        let norm = self
            .norm
            .map_or(String::new(), |norm| format!(", clipped to norm {}", format_number(norm)));
        let noise =
            self.noise.map_or(String::new(), |noise| format!(", noise {}", format_number(noise)));
        norm + &noise
    }
}

/// The plan of `train.clip_grad_norm`, `clip_grad_value` and `gradient_noise`.
pub(super) fn decide(experiment: &Experiment) -> ClipPlan {
    let train = &experiment.train;
    let norm = train.clip_grad_norm;
    let value = train.clip_grad_value;
    let noise = train.gradient_noise;
    ClipPlan { norm, value, noise }
}
