//! Bytes that each rank needs for the model, before any activation.

use serde::Serialize;

use crate::plan::{Plan, UpdateRule};
use crate::units::Bytes;

/// Memory of one rank, without activations and loaded batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// f32 parameters.
    pub weights: Bytes,
    /// f32 gradients.
    pub gradients: Bytes,
    /// Moments of the update rule.
    pub optimizer: Bytes,
    /// Running statistics.
    pub buffers: Bytes,
}

impl Memory {
    /// What a rank of `plan` needs.
    pub fn of(plan: &Plan) -> Self {
        let weights = Bytes::of_f32(plan.model.n_parameters);
        Self {
            weights,
            gradients: weights,
            optimizer: Bytes(moments(&plan.optimizer.rule) * weights.0),
            buffers: Bytes::of_f32(plan.model.n_buffer_elements),
        }
    }

    /// Everything together.
    pub fn total(&self) -> Bytes {
        Bytes(self.weights.0 + self.gradients.0 + self.optimizer.0 + self.buffers.0)
    }
}

/// Values kept per parameter element.
fn moments(rule: &UpdateRule) -> u64 {
    match rule {
        UpdateRule::Sgd { momentum, .. } => u64::from(*momentum > 0.0),
        UpdateRule::Adam { .. } | UpdateRule::AdamW { .. } => 2,
    }
}
