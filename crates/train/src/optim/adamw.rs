//! `optimizer.name = "adamw"`: its options; the arithmetic is `AdamFactors::update` of `adam.rs`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
#[cfg(feature = "cuda")]
use crate::ops::cuda::Rule;
use crate::optim::adam::{AMSGRAD_STATE, AdamFactors, STATE, decays};
use crate::optim::{Block, Optimizer, Step};

/// Adam with decoupled weight decay, as `torch.optim.AdamW`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AdamW {
    /// decoupled weight decay: each step multiplies weights by `1 - lr * weight_decay`.
    #[schemars(range(min = 0.0))]
    pub weight_decay: f64,
    /// exponential decay rates of the first and second moments.
    #[schemars(schema_with = "decays::<2>")]
    pub betas: [f64; 2],
    /// added to the denominator for stability.
    #[schemars(range(min = 0.0))]
    pub eps: f64,
    /// divide by the largest second moment so far (`AMSGrad`, Reddi et al. 2018).
    pub amsgrad: bool,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { weight_decay: 1e-2, betas: [0.9, 0.999], eps: 1e-8, amsgrad: false }
    }
}

impl Kind for AdamW {
    const NAME: &'static str = "adamw";
}

impl Optimizer for AdamW {
    fn state(&self) -> Vec<&'static str> {
        if self.amsgrad { AMSGRAD_STATE.to_vec() } else { STATE.to_vec() }
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn momentum(&self) -> Option<&'static str> {
        Some("beta1")
    }

    fn update(&self, block: &mut Block<'_>, step: &Step) {
        self.factors(step).update(block);
    }

    fn has_gpu_kernel(&self) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self, step: &Step) -> Option<Rule> {
        Some(self.factors(step).on_gpu())
    }
}

impl AdamW {
    fn factors(&self, step: &Step) -> AdamFactors {
        let mut factors = AdamFactors::new(self.betas, self.eps, step);
        factors.shrink = (1.0 - step.lr * step.weight_decay) as f32;
        factors.amsgrad = self.amsgrad;
        factors
    }
}
