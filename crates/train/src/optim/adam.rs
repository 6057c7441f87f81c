//! `optimizer.name = "adam"`, `"adamw"`

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
#[cfg(feature = "cuda")]
use crate::ops::cuda::Rule;
use crate::optim::block::lerp;
use crate::optim::{Block, Optimizer, Step};

/// Adam with an L2 penalty, as `torch.optim.Adam`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Adam {
    /// L2 penalty: `weight_decay * weight` is added to the gradient.
    #[schemars(range(min = 0.0), example = 1e-4)]
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

impl Default for Adam {
    fn default() -> Self {
        Self { weight_decay: 0.0, betas: [0.9, 0.999], eps: 1e-8, amsgrad: false }
    }
}

impl Kind for Adam {
    const NAME: &'static str = "adam";
}

impl Optimizer for Adam {
    fn state(&self) -> Vec<&'static str> {
        state(self.amsgrad)
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

impl Adam {
    fn factors(&self, step: &Step) -> AdamFactors {
        AdamFactors {
            penalty: step.weight_decay as f32,
            amsgrad: self.amsgrad,
            ..AdamFactors::new(self.betas, self.eps, step)
        }
    }
}

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
        state(self.amsgrad)
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
        AdamFactors {
            shrink: (1.0 - step.lr * step.weight_decay) as f32,
            amsgrad: self.amsgrad,
            ..AdamFactors::new(self.betas, self.eps, step)
        }
    }
}

/// `N` decays, each at least 0 and less than 1.
pub(super) fn decays<const N: usize>(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": { "type": "number", "minimum": 0.0, "exclusiveMaximum": 1.0 },
        "minItems": N,
        "maxItems": N,
    })
}

/// PyTorch's names of its state tensors.
pub(super) const STATE: [&str; 2] = ["exp_avg", "exp_avg_sq"];

fn state(amsgrad: bool) -> Vec<&'static str> {
    if amsgrad { vec!["exp_avg", "exp_avg_sq", "max_exp_avg_sq"] } else { STATE.to_vec() }
}

/// Coefficients of a step of Adam or `AdamW`. 1 - beta is computed in f64 and then rounded, as in
/// PyTorch: computed from a rounded beta, it would have few correct digits.
pub(super) struct AdamFactors {
    /// 1 - beta1
    rest1: f32,
    beta2: f32,
    /// 1 - beta2
    rest2: f32,
    eps: f32,
    step_size: f32,
    root_correction: f32,
    /// Share of the parameter that is added to its gradient.
    penalty: f32,
    /// Factor on the parameter before it moves, of decoupled weight decay.
    pub(super) shrink: f32,
    /// Divide by the largest second moment so far.
    amsgrad: bool,
}

impl AdamFactors {
    /// Without weight decay and `AMSGrad`.
    pub(super) fn new([beta1, beta2]: [f64; 2], eps: f64, step: &Step) -> Self {
        let beta1 = step.momentum.unwrap_or(beta1);
        let count = i32::try_from(step.count).unwrap_or(i32::MAX);
        let correction = |beta: f64| 1.0 - beta.powi(count);
        Self {
            rest1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            rest2: (1.0 - beta2) as f32,
            eps: eps as f32,
            step_size: (step.lr / correction(beta1)) as f32,
            root_correction: correction(beta2).sqrt() as f32,
            penalty: 0.0,
            shrink: 1.0,
            amsgrad: false,
        }
    }

    pub(super) fn update(&self, block: &mut Block<'_>) {
        let &Self { rest1, beta2, rest2, eps, step_size, .. } = self;
        let &Self { root_correction, penalty, shrink, .. } = self;
        if self.amsgrad {
            block.each_with_state(
                #[inline(always)]
                move |value, g, [m, v, most]| {
                    let g = g + penalty * value;
                    *m = lerp(*m, g, rest1);
                    *v = beta2 * *v + rest2 * (g * g);
                    *most = most.max(*v);
                    value * shrink - step_size * (*m / (most.sqrt() / root_correction + eps))
                },
            );
        } else {
            block.each_with_state(
                #[inline(always)]
                move |value, g, [m, v]| {
                    let g = g + penalty * value;
                    *m = lerp(*m, g, rest1);
                    *v = beta2 * *v + rest2 * (g * g);
                    value * shrink - step_size * (*m / (v.sqrt() / root_correction + eps))
                },
            );
        }
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self) -> Rule {
        let &Self { rest1, beta2, rest2, eps, step_size, .. } = self;
        let &Self { root_correction, penalty, shrink, .. } = self;
        let kind = if self.amsgrad { Rule::ADAM_AMSGRAD } else { Rule::ADAM };
        let rule = Rule { kind, rest1, beta2, rest2, eps, step_size, ..Rule::default() };
        Rule { root_correction, penalty, shrink, ..rule }
    }
}
