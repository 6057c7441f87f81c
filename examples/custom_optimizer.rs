//! Your own optimizer: registered by your program, chosen in TOML, its options checked as ddprun's
//! own are.
//!
//! ```text
//! cargo run --release --example custom_optimizer -- examples/custom_optimizer.toml
//! cargo run --release --example custom_optimizer -- plan examples/custom_optimizer.toml optimizer.momentun=0.5
//! ```
//!
//! The second command is refused: `did you mean optimizer.momentum?`

use std::process::ExitCode;

use ddprun::config::kind::Kind;
use ddprun::kinds::Kinds;
use ddprun::optim::{Block, Optimizer, Step};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Signum (Bernstein et al. 2018): the sign of a momentum, with decoupled weight decay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Signum {
    /// share of the momentum that stays at a step.
    #[schemars(range(min = 0.0, max = 1.0))]
    momentum: f64,
    /// decoupled weight decay.
    #[schemars(range(min = 0.0))]
    weight_decay: f64,
}

impl Default for Signum {
    fn default() -> Self {
        Self { momentum: 0.9, weight_decay: 0.0 }
    }
}

impl Kind for Signum {
    const NAME: &'static str = "signum";
}

impl Optimizer for Signum {
    fn state(&self) -> Vec<&'static str> {
        vec!["momentum_buffer"]
    }

    fn weight_decay(&self) -> f64 {
        self.weight_decay
    }

    fn update(&self, block: &mut Block<'_>, step: &Step) {
        let lr = step.lr as f32;
        let shrink = (1.0 - step.lr * step.weight_decay) as f32;
        let (keep, rest) = (self.momentum as f32, (1.0 - self.momentum) as f32);
        block.each_with_state(|value, gradient, [momentum]| {
            *momentum = keep * *momentum + rest * gradient;
            value * shrink - lr * momentum.signum()
        });
    }
}

/// ddprun's kinds, and this one.
pub(crate) fn kinds() -> Kinds {
    let mut kinds = Kinds::default();
    kinds.optimizers.add::<Signum>();
    kinds
}

fn main() -> ExitCode {
    ddprun::cli::run(std::env::args_os(), &kinds())
}
