//! `optimizer.name = "adagrad"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
#[cfg(feature = "cuda")]
use crate::ops::cuda::Rule;
use crate::optim::{Block, Optimizer, Step};

/// Adagrad (Duchi et al. 2011), as `torch.optim.Adagrad`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Adagrad {
    /// L2 penalty: `weight_decay * weight` is added to the gradient.
    #[schemars(range(min = 0.0), example = 1e-4)]
    pub weight_decay: f64,
    /// decay of the learning rate: step t moves by lr / (1 + (t - 1) `lr_decay`).
    #[schemars(range(min = 0.0), example = 1e-4)]
    pub lr_decay: f64,
    /// initial value of the accumulator.
    #[schemars(range(min = 0.0), example = 0.1)]
    pub initial_accumulator_value: f64,
    /// added to the denominator for stability.
    #[schemars(range(min = 0.0))]
    pub eps: f64,
}

impl Default for Adagrad {
    fn default() -> Self {
        Self { weight_decay: 0.0, lr_decay: 0.0, initial_accumulator_value: 0.0, eps: 1e-10 }
    }
}

impl Kind for Adagrad {
    const NAME: &'static str = "adagrad";
}

/// Coefficients of a step.
struct Factors {
    lr: f32,
    /// Share of the parameter that is added to its gradient.
    penalty: f32,
    eps: f32,
    /// Initial value of the sum, added in the first step, as state begins as zeros.
    start: f32,
}

impl Adagrad {
    fn factors(&self, step: &Step) -> Factors {
        let done = step.count.saturating_sub(1);
        Factors {
            lr: (step.lr / (1.0 + done as f64 * self.lr_decay)) as f32,
            penalty: step.weight_decay as f32,
            eps: self.eps as f32,
            start: if done == 0 { self.initial_accumulator_value as f32 } else { 0.0 },
        }
    }
}

impl Optimizer for Adagrad {
    fn state(&self) -> Vec<&'static str> {
        vec!["sum"]
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn update(&self, block: &mut Block<'_>, step: &Step) {
        let Factors { lr, penalty, eps, start } = self.factors(step);
        block.each_with_state(
            #[inline(always)]
            move |value, g, [sum]| {
                let g = g + penalty * value;
                *sum = (*sum + start) + g * g;
                value - lr * (g / (sum.sqrt() + eps))
            },
        );
    }

    fn has_gpu_kernel(&self) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self, step: &Step) -> Option<Rule> {
        let Factors { lr, penalty, eps, start } = self.factors(step);
        Some(Rule { kind: Rule::ADAGRAD, lr, penalty, eps, start, ..Rule::default() })
    }
}
