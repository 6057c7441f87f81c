//! Gradient clipping, and the noise that gradients are given.

use serde::{Deserialize, Serialize};

use crate::config::Experiment;
use crate::plan::arithmetic::shown;

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

impl ClipPlan {
    /// ", clipped to norm 1.0, noise 0.3"
    pub(crate) fn line(&self) -> String {
        let norm =
            self.norm.map_or(String::new(), |norm| format!(", clipped to norm {}", shown(norm)));
        let noise = self.noise.map_or(String::new(), |noise| format!(", noise {}", shown(noise)));
        norm + &noise
    }
}

/// Clipping and noise as asked.
pub(crate) fn decide(experiment: &Experiment) -> ClipPlan {
    let train = &experiment.train;
    let norm = train.clip_grad_norm;
    let value = train.clip_grad_value;
    let noise = train.gradient_noise;
    ClipPlan { norm, value, noise }
}
