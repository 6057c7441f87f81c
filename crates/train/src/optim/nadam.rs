//! `optimizer.name = "nadam"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
#[cfg(feature = "cuda")]
use crate::ops::cuda::Rule;
use crate::optim::adam::{STATE, decays};
use crate::optim::block::lerp;
use crate::optim::{Block, Optimizer, Step};

/// Adam with Nesterov's momentum (Dozat 2016), as `torch.optim.NAdam`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NAdam {
    /// L2 penalty: `weight_decay * weight` is added to the gradient. With `decoupled_weight_decay`,
    /// each step multiplies weights by `1 - lr * weight_decay` instead.
    #[schemars(range(min = 0.0), example = 1e-4)]
    pub weight_decay: f64,
    /// decoupled weight decay, as in AdamW (`NAdamW`).
    pub decoupled_weight_decay: bool,
    /// exponential decay rates of the first and second moments.
    #[schemars(schema_with = "decays::<2>")]
    pub betas: [f64; 2],
    /// added to the denominator for stability.
    #[schemars(range(min = 0.0))]
    pub eps: f64,
    /// controls how slowly the momentum warms up to the first beta.
    #[schemars(range(min = 0.0))]
    pub momentum_decay: f64,
}

impl Default for NAdam {
    fn default() -> Self {
        Self {
            weight_decay: 0.0,
            decoupled_weight_decay: false,
            betas: [0.9, 0.999],
            eps: 1e-8,
            momentum_decay: 4e-3,
        }
    }
}

impl Kind for NAdam {
    const NAME: &'static str = "nadam";
}

/// Coefficients of a step.
struct Factors {
    of_gradient: f32,
    of_momentum: f32,
    /// Bias correction of the second moment.
    correction: f32,
    /// 1 - beta1
    rest1: f32,
    beta2: f32,
    /// 1 - beta2
    rest2: f32,
    eps: f32,
    /// Share of the parameter that is added to its gradient.
    penalty: f32,
    /// Factor on the parameter before it moves, of decoupled weight decay.
    shrink: f32,
}

impl NAdam {
    fn factors(&self, step: &Step) -> Factors {
        let [beta1, beta2] = self.betas;
        let t = step.count as f64;
        let mu = self.mu(t);
        let next = self.mu(t + 1.0);
        let product = self.mu_product(step.count);
        let decay = step.weight_decay;
        let decoupled = self.decoupled_weight_decay;
        let count = i32::try_from(step.count).unwrap_or(i32::MAX);
        Factors {
            of_gradient: (step.lr * (1.0 - mu) / (1.0 - product)) as f32,
            of_momentum: (step.lr * next / (1.0 - product * next)) as f32,
            correction: (1.0 - beta2.powi(count)) as f32,
            rest1: (1.0 - beta1) as f32,
            beta2: beta2 as f32,
            rest2: (1.0 - beta2) as f32,
            eps: self.eps as f32,
            penalty: if decoupled { 0.0 } else { decay as f32 },
            shrink: if decoupled { (1.0 - step.lr * decay) as f32 } else { 1.0 },
        }
    }

    /// The momentum of step `t`: `beta1 (1 - 0.96^(t momentum_decay) / 2)`.
    fn mu(&self, t: f64) -> f64 {
        self.betas[0] * (1.0 - 0.5 * 0.96f64.powf(t * self.momentum_decay))
    }

    /// Product of the momenta of steps 1 to `count`, so exact that 1 minus it has no wrong digit.
    fn mu_product(&self, count: u64) -> f64 {
        let mut product = 1.0;
        let ratio = 0.96f64.powf(self.momentum_decay);
        let mut warmth = 1.0;
        for _ in 0..count {
            warmth *= ratio;
            product *= self.betas[0] * (1.0 - 0.5 * warmth);
            if product < f64::EPSILON / 4.0 {
                return 0.0;
            }
        }
        product
    }
}

impl Optimizer for NAdam {
    fn state(&self) -> Vec<&'static str> {
        STATE.to_vec()
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn update(&self, block: &mut Block<'_>, step: &Step) {
        let factors = self.factors(step);
        let Factors { of_gradient, of_momentum, correction, rest1, .. } = factors;
        let Factors { beta2, rest2, eps, penalty, shrink, .. } = factors;
        block.each_with_state(
            #[inline(always)]
            move |value, g, [m, v]| {
                let value = value * shrink;
                let g = g + penalty * value;
                *m = lerp(*m, g, rest1);
                *v = beta2 * *v + rest2 * (g * g);
                let root = (*v / correction).sqrt() + eps;
                value - of_gradient * (g / root) - of_momentum * (*m / root)
            },
        );
    }

    fn has_gpu_kernel(&self) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self, step: &Step) -> Option<Rule> {
        let factors = self.factors(step);
        let Factors { of_gradient: lr, of_momentum: step_size, correction, .. } = factors;
        let Factors { rest1, beta2, rest2, eps, penalty, shrink, .. } = factors;
        let rule =
            Rule { kind: Rule::NADAM, lr, step_size, rest1, beta2, rest2, ..Rule::default() };
        Some(Rule { root_correction: correction.sqrt(), eps, penalty, shrink, ..rule })
    }
}
