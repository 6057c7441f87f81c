//! `optimizer.name = "sgd"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, OptionConflict};
#[cfg(feature = "cuda")]
use crate::ops::cuda::Rule;
use crate::optim::{Block, Optimizer, Step};

/// stochastic gradient descent, as `torch.optim.SGD`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sgd {
    /// L2 penalty: `weight_decay * weight` is added to the gradient.
    #[schemars(range(min = 0.0), example = 1e-4)]
    pub weight_decay: f64,
    /// momentum; 0 is none.
    #[schemars(range(min = 0.0, max = 1.0), example = 0.9)]
    pub momentum: f64,
    /// damping of the new gradient in the momentum buffer.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub dampening: f64,
    /// Nesterov's look-ahead; needs a momentum and no dampening.
    pub nesterov: bool,
}

impl Kind for Sgd {
    const NAME: &'static str = "sgd";

    fn check(&self) -> Vec<OptionConflict> {
        let plain = self.momentum == 0.0 || self.dampening != 0.0;
        let what = "needs a momentum and no dampening".to_owned();
        let with = &["momentum", "dampening"];
        let wrong = OptionConflict { key: "nesterov", with, what };
        if self.nesterov && plain { vec![wrong] } else { Vec::new() }
    }
}

/// Coefficients of a step.
struct Factors {
    lr: f32,
    /// Share of the parameter that is added to its gradient.
    penalty: f32,
    momentum: f32,
    /// Share of the gradient that goes into the momentum buffer.
    damp: f32,
}

impl Sgd {
    fn factors(&self, step: &Step) -> Factors {
        // PyTorch's buffer starts as the first gradient, undamped.
        let damp = if step.count == 1 { 1.0 } else { (1.0 - self.dampening) as f32 };
        Factors {
            lr: step.lr as f32,
            penalty: step.weight_decay as f32,
            momentum: step.momentum_or(self.momentum) as f32,
            damp,
        }
    }
}

impl Optimizer for Sgd {
    fn state(&self) -> Vec<&'static str> {
        if self.momentum == 0.0 { Vec::new() } else { vec!["momentum_buffer"] }
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn momentum(&self) -> Option<&'static str> {
        (self.momentum != 0.0).then_some("momentum")
    }

    fn update(&self, block: &mut Block<'_>, step: &Step) {
        let Factors { lr, penalty, momentum, damp } = self.factors(step);
        if self.momentum == 0.0 {
            block.each(
                #[inline(always)]
                move |value, g| value - lr * (g + penalty * value),
            );
        } else if self.nesterov {
            block.each_with_state(
                #[inline(always)]
                move |value, g, [buffer]| {
                    let g = g + penalty * value;
                    *buffer = momentum * *buffer + damp * g;
                    value - lr * (g + momentum * *buffer)
                },
            );
        } else {
            block.each_with_state(
                #[inline(always)]
                move |value, g, [buffer]| {
                    *buffer = momentum * *buffer + damp * (g + penalty * value);
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
        let Factors { lr, penalty, momentum, damp } = self.factors(step);
        let kind = match (self.momentum != 0.0, self.nesterov) {
            (false, _) => Rule::SGD,
            (true, false) => Rule::SGD_MOMENTUM,
            (true, true) => Rule::SGD_NESTEROV,
        };
        Some(Rule { kind, lr, penalty, momentum, damp, ..Rule::default() })
    }
}
