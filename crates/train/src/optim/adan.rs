//! `optimizer.name = "adan"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::optim::adam::decays;
use crate::optim::block::lerp;
use crate::optim::{Block, Optimizer, Step};

/// Adan (Xie et al. 2022): Nesterov's momentum from the difference of successive gradients, with
/// decoupled weight decay, as its authors' `Adan`. They also clip gradients; set
/// `train.clip_grad_norm` for that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Adan {
    /// decoupled weight decay: each step divides weights by `1 + lr * weight_decay`.
    #[schemars(range(min = 0.0), example = 0.02)]
    pub weight_decay: f64,
    /// exponential decay rates of the gradients, of their differences, and of the squares.
    #[schemars(schema_with = "decays::<3>")]
    pub betas: [f64; 3],
    /// added to the denominator for stability.
    #[schemars(range(min = 0.0))]
    pub eps: f64,
}

impl Default for Adan {
    fn default() -> Self {
        Self { weight_decay: 0.0, betas: [0.98, 0.92, 0.99], eps: 1e-8 }
    }
}

impl Kind for Adan {
    const NAME: &'static str = "adan";
}

impl Optimizer for Adan {
    fn state(&self) -> Vec<&'static str> {
        vec!["exp_avg", "exp_avg_diff", "exp_avg_sq", "neg_pre_grad"]
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn momentum(&self) -> Option<&'static str> {
        Some("beta1")
    }

    fn update(&self, block: &mut Block<'_>, step: &Step) {
        let beta1 = step.momentum.unwrap_or(self.betas[0]);
        let [_, beta2, beta3] = self.betas;
        let count = i32::try_from(step.count).unwrap_or(i32::MAX);
        let correction = |beta: f64| 1.0 - beta.powi(count);
        let step_size = (step.lr / correction(beta1)) as f32;
        let step_size_diff = (step.lr * beta2 / correction(beta2)) as f32;
        let root_correction = correction(beta3).sqrt() as f32;
        let [rest1, rest2, rest3] = [beta1, beta2, beta3].map(|beta| (1.0 - beta) as f32);
        let [beta2, beta3, eps] = [beta2, beta3, self.eps].map(|number| number as f32);
        let divisor = (1.0 + step.lr * step.weight_decay) as f32;
        // Before the first gradient there is none that it could differ from.
        let is_first = step.count == 1;
        block.each_with_state(
            #[inline(always)]
            move |value, g, [exp_avg, exp_avg_diff, exp_avg_sq, neg_pre_grad]| {
                let diff = if is_first { 0.0 } else { g + *neg_pre_grad };
                *exp_avg = lerp(*exp_avg, g, rest1);
                *exp_avg_diff = lerp(*exp_avg_diff, diff, rest2);
                let ahead = g + beta2 * diff;
                *exp_avg_sq = beta3 * *exp_avg_sq + rest3 * (ahead * ahead);
                *neg_pre_grad = -g;
                let root = exp_avg_sq.sqrt() / root_correction + eps;
                let moved = value - step_size * (*exp_avg / root);
                (moved - step_size_diff * (*exp_avg_diff / root)) / divisor
            },
        );
    }
}
