//! `optimizer.name = "lion"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
#[cfg(feature = "cuda")]
use crate::ops::cuda::Rule;
use crate::optim::adam::decays;
use crate::optim::block::lerp;
use crate::optim::{Block, Optimizer, Step};

/// Lion (Chen et al. 2023): the sign of an interpolated momentum, with decoupled weight decay. Use
/// a learning rate 3 to 10 times smaller than `AdamW`'s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Lion {
    /// decoupled weight decay: each step multiplies weights by `1 - lr * weight_decay`.
    #[schemars(range(min = 0.0), example = 0.1)]
    pub weight_decay: f64,
    /// beta1 (update interpolation) and beta2 (momentum decay).
    #[schemars(schema_with = "decays::<2>")]
    pub betas: [f64; 2],
}

impl Default for Lion {
    fn default() -> Self {
        Self { weight_decay: 0.0, betas: [0.9, 0.99] }
    }
}

impl Kind for Lion {
    const NAME: &'static str = "lion";
}

/// Coefficients of a step.
struct Factors {
    lr: f32,
    /// Factor on the parameter before it moves, of decoupled weight decay.
    shrink: f32,
    /// 1 - beta1
    rest1: f32,
    /// 1 - beta2
    rest2: f32,
}

impl Lion {
    fn factors(&self, step: &Step) -> Factors {
        let [beta1, beta2] = self.betas;
        Factors {
            lr: step.lr as f32,
            shrink: (1.0 - step.lr * step.weight_decay) as f32,
            rest1: (1.0 - step.momentum.unwrap_or(beta1)) as f32,
            rest2: (1.0 - beta2) as f32,
        }
    }
}

impl Optimizer for Lion {
    fn state(&self) -> Vec<&'static str> {
        vec!["exp_avg"]
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn momentum(&self) -> Option<&'static str> {
        Some("beta1")
    }

    fn update(&self, block: &mut Block<'_>, step: &Step) {
        let Factors { lr, shrink, rest1, rest2 } = self.factors(step);
        block.each_with_state(
            #[inline(always)]
            move |value, g, [momentum]| {
                let direction = lerp(*momentum, g, rest1);
                *momentum = lerp(*momentum, g, rest2);
                value * shrink - lr * sign(direction)
            },
        );
    }

    fn has_gpu_kernel(&self) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self, step: &Step) -> Option<Rule> {
        let Factors { lr, shrink, rest1, rest2 } = self.factors(step);
        Some(Rule { kind: Rule::LION, lr, shrink, rest1, rest2, ..Rule::default() })
    }
}

/// `torch.sign`: 0 has none.
#[inline(always)]
fn sign(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        0.0
    }
}
