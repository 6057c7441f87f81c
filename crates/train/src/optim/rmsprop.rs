//! `optimizer.name = "rmsprop"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
#[cfg(feature = "cuda")]
use crate::ops::cuda::Rule;
use crate::optim::{Block, Optimizer, Step};

/// `RMSprop` (Tieleman and Hinton 2012), as `torch.optim.RMSprop` without `centered`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RmsProp {
    /// L2 penalty: `weight_decay * weight` is added to the gradient.
    #[schemars(range(min = 0.0), example = 1e-4)]
    pub weight_decay: f64,
    /// smoothing constant of the squared-gradient average.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub alpha: f64,
    /// added to the denominator for stability.
    #[schemars(range(min = 0.0))]
    pub eps: f64,
    /// momentum of the update; 0 is none.
    #[schemars(range(min = 0.0, max = 1.0), example = 0.9)]
    pub momentum: f64,
}

impl Default for RmsProp {
    fn default() -> Self {
        Self { weight_decay: 0.0, alpha: 0.99, eps: 1e-8, momentum: 0.0 }
    }
}

impl Kind for RmsProp {
    const NAME: &'static str = "rmsprop";
}

/// Coefficients of a step.
struct Factors {
    lr: f32,
    /// Share of the parameter that is added to its gradient.
    penalty: f32,
    eps: f32,
    alpha: f32,
    /// 1 - alpha
    rest: f32,
    momentum: f32,
}

impl RmsProp {
    fn factors(&self, step: &Step) -> Factors {
        Factors {
            lr: step.lr as f32,
            penalty: step.weight_decay as f32,
            eps: self.eps as f32,
            alpha: self.alpha as f32,
            rest: (1.0 - self.alpha) as f32,
            momentum: step.momentum_or(self.momentum) as f32,
        }
    }
}

impl Optimizer for RmsProp {
    fn state(&self) -> Vec<&'static str> {
        if self.momentum == 0.0 {
            vec!["square_avg"]
        } else {
            vec!["square_avg", "momentum_buffer"]
        }
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn momentum(&self) -> Option<&'static str> {
        (self.momentum != 0.0).then_some("momentum")
    }

    fn update(&self, block: &mut Block<'_>, step: &Step) {
        let Factors { lr, penalty, eps, alpha, rest, momentum } = self.factors(step);
        let square = move |square: &mut f32, g: f32| {
            *square = alpha * *square + rest * (g * g);
            g / (square.sqrt() + eps)
        };
        if self.momentum == 0.0 {
            block.each_with_state(
                #[inline(always)]
                move |value, g, [mean]| value - lr * square(mean, g + penalty * value),
            );
        } else {
            block.each_with_state(
                #[inline(always)]
                move |value, g, [mean, buffer]| {
                    *buffer = momentum * *buffer + square(mean, g + penalty * value);
                    value - lr * *buffer
                },
            );
        }
    }

    fn has_gpu_kernel(&self) -> bool {
        true
    }

    #[cfg(feature = "cuda")]
    fn on_gpu(&self, step: &Step) -> Option<Rule> {
        let Factors { lr, penalty, eps, alpha: beta2, rest: rest2, momentum } = self.factors(step);
        let has_momentum = self.momentum != 0.0;
        let kind = if has_momentum { Rule::RMSPROP_MOMENTUM } else { Rule::RMSPROP };
        Some(Rule { kind, lr, penalty, eps, beta2, rest2, momentum, ..Rule::default() })
    }
}
