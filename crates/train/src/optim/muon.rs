//! `optimizer.name = "muon"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::ops::newton_schulz;
use crate::optim::adam::{AdamFactors, STATE, decays};
use crate::optim::block::lerp;
use crate::optim::{Block, Optimizer, Step};
use crate::plan::{Matrices, StateTensor};

/// Muon (Jordan et al. 2024), as `torch.optim.Muon`, for the matrices of hidden layers. Everything
/// else (biases, norms, embeddings, convolutions, the head) is updated by `AdamW`, as its authors
/// recommend. PyTorch orthogonalises in bf16, ddprun in f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Muon {
    /// decoupled weight decay: each step multiplies weights by `1 - lr * weight_decay`.
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// momentum of matrices.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub momentum: f64,
    /// Nesterov's look-ahead.
    pub nesterov: bool,
    /// Newton-Schulz iterations.
    #[schemars(range(min = 1, max = 99))]
    pub ns_steps: u32,
    /// how the shape of a matrix scales its learning rate, as PyTorch's `adjust_lr_fn`.
    pub adjust_lr_fn: AdjustLr,
    /// learning rate of everything else, as a factor of that of matrices.
    #[schemars(range(min = 0.0), example = 0.015)]
    pub adamw_lr_factor: f64,
    /// decay rates of `AdamW`'s two moments.
    #[schemars(schema_with = "decays::<2>")]
    pub adamw_betas: [f64; 2],
    /// added to the root of `AdamW`'s second moment.
    #[schemars(range(min = 0.0))]
    pub adamw_eps: f64,
}

/// What the shape of a matrix does to its learning rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdjustLr {
    /// The root of max(1, A / B).
    #[default]
    Original,
    /// 0.2 times the root of max(A, B): `AdamW`'s rates fit.
    MatchRmsAdamw,
    /// The root of A / B.
    SpectralUnclamped,
}

impl Default for Muon {
    fn default() -> Self {
        Self {
            weight_decay: 0.1,
            momentum: 0.95,
            nesterov: true,
            ns_steps: 5,
            adjust_lr_fn: AdjustLr::Original,
            adamw_lr_factor: 1.0,
            adamw_betas: [0.9, 0.999],
            adamw_eps: 1e-8,
        }
    }
}

impl Kind for Muon {
    const NAME: &'static str = "muon";
}

impl Optimizer for Muon {
    fn state(&self) -> Vec<&'static str> {
        STATE.to_vec()
    }

    fn matrices(&self) -> Option<Matrices> {
        let state = vec![StateTensor::whole("momentum_buffer")];
        Some(Matrices { only_hidden: true, state, others_lr_factor: self.adamw_lr_factor })
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn takes_whole_tensors(&self) -> bool {
        true
    }

    fn update(&self, tensor: &mut Block<'_>, step: &Step) {
        let shrink = (1.0 - step.lr * step.weight_decay) as f32;
        match *tensor.shape {
            [rows, columns] if tensor.is_matrix => {
                let direction =
                    newton_schulz(&self.updated_momentum(tensor), rows, columns, self.ns_steps);
                let lr = (step.lr * self.adjust_lr_fn.factor(rows, columns)) as f32;
                for (value, direction) in tensor.values.iter_mut().zip(direction) {
                    *value = *value * shrink - lr * direction;
                }
            }
            _ => {
                let mut factors = AdamFactors::new(self.adamw_betas, self.adamw_eps, step);
                factors.shrink = shrink;
                factors.update(tensor);
            }
        }
    }
}

impl Muon {
    /// Updates the momentum, and returns the matrix to orthogonalise.
    fn updated_momentum(&self, tensor: &mut Block<'_>) -> Vec<f32> {
        let rest = (1.0 - self.momentum) as f32;
        let momentum = self.momentum as f32;
        let gradient = tensor.prepared_gradient();
        let [buffer] = &mut tensor.state[..] else { return gradient };
        let renewed = buffer.iter_mut().zip(gradient).map(|(buffer, g)| {
            *buffer = lerp(*buffer, g, rest);
            if self.nesterov { lerp(g, *buffer, momentum) } else { *buffer }
        });
        renewed.collect()
    }
}

impl AdjustLr {
    fn factor(self, rows: usize, columns: usize) -> f64 {
        let a = rows as f64;
        let b = columns as f64;
        match self {
            Self::Original => (a / b).max(1.0).sqrt(),
            Self::MatchRmsAdamw => 0.2 * a.max(b).sqrt(),
            Self::SpectralUnclamped => (a / b).sqrt(),
        }
    }
}
