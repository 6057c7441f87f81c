//! Update rule and learning rate, with PyTorch's numbers where none were given.

use serde::{Deserialize, Serialize};

use crate::config::schema::{Ema, Optimizer, OptimizerKind};
use crate::config::{Loaded, Problem};
use crate::plan::{BatchPlan, ScalingRule};
use crate::units::GlobalBatchSize;

/// Update rule with all its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerPlan {
    /// Which rule.
    pub rule: UpdateRule,
    /// Learning rate after scaling by the global batch size; schedules multiply it.
    pub lr: f64,
    /// Learning rate as written.
    pub base_lr: f64,
    /// How it was scaled.
    pub scaling: ScalingRule,
    /// Global batch size that `base_lr` was tuned for.
    pub base_batch_size: GlobalBatchSize,
    /// L2 penalty or decoupled decay.
    pub weight_decay: f64,
    /// Whether one-dimensional parameters are left without decay.
    pub no_decay_on_1d: bool,
}

/// The update rules.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UpdateRule {
    /// `torch.optim.SGD`
    Sgd {
        /// 0 = none.
        momentum: f64,
        /// Damping of the new gradient in the momentum buffer.
        dampening: f64,
        /// Nesterov's look-ahead.
        nesterov: bool,
    },
    /// `torch.optim.Adam`: decay is added to the gradient.
    Adam {
        /// First moment.
        beta1: f64,
        /// Second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
    },
    /// `torch.optim.AdamW`: decay shrinks the weights first.
    AdamW {
        /// First moment.
        beta1: f64,
        /// Second moment.
        beta2: f64,
        /// Added to the root of the second moment.
        eps: f64,
    },
}

/// A moving average of the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EmaPlan {
    /// Share of the average that stays at an update.
    pub decay: f64,
    /// How fast the share grows up to `decay`; absent = it is `decay` from the first update on.
    pub power: Option<f64>,
    /// Whether running statistics are averaged as well; else those of the training go with the averages.
    #[serde(default)]
    pub use_buffers: bool,
}

/// `base_lr (global / base)^e`, e = 0, 1/2 or 1 (Goyal et al. 2017: linear for SGD; square root suits Adam).
pub fn scale_lr(
    rule: ScalingRule,
    base_lr: f64,
    tuned_for: GlobalBatchSize,
    in_use: GlobalBatchSize,
) -> f64 {
    let ratio = f64::from(in_use.get()) / f64::from(tuned_for.get());
    match rule {
        ScalingRule::None => base_lr,
        ScalingRule::Sqrt => base_lr * ratio.sqrt(),
        ScalingRule::Linear => base_lr * ratio,
    }
}

/// The update rule as asked, at the rate that the batch asks for.
pub(crate) fn decide(loaded: &Loaded, batch: &BatchPlan) -> Result<OptimizerPlan, Problem> {
    let asked = &loaded.experiment.optimizer;
    let scaling = loaded.experiment.lr_scaling.rule;
    let Some(base_batch_size) = GlobalBatchSize::new(loaded.experiment.lr_scaling.base_batch_size)
    else {
        return Err(loaded.problem("lr_scaling.base_batch_size", "must be at least 1"));
    };
    Ok(OptimizerPlan {
        rule: rule(asked),
        lr: scale_lr(scaling, asked.lr, base_batch_size, batch.global),
        base_lr: asked.lr,
        scaling,
        base_batch_size,
        weight_decay: asked.weight_decay.unwrap_or(default_decay(asked.name)),
        no_decay_on_1d: asked.no_decay_on_1d,
    })
}

/// The average as asked, if one is.
pub(crate) fn ema(asked: &Ema) -> Option<EmaPlan> {
    let (power, use_buffers) = (asked.power, asked.use_buffers.unwrap_or(false));
    asked.decay.map(|decay| EmaPlan { decay, power, use_buffers })
}

fn default_decay(kind: OptimizerKind) -> f64 {
    match kind {
        OptimizerKind::Sgd | OptimizerKind::Adam => 0.0,
        OptimizerKind::AdamW => 1e-2,
    }
}

fn rule(asked: &Optimizer) -> UpdateRule {
    let [beta1, beta2] = asked.betas.unwrap_or([0.9, 0.999]);
    let eps = asked.eps.unwrap_or(1e-8);
    match asked.name {
        OptimizerKind::Sgd => UpdateRule::Sgd {
            momentum: asked.momentum.unwrap_or(0.0),
            dampening: asked.dampening.unwrap_or(0.0),
            nesterov: asked.nesterov.unwrap_or(false),
        },
        OptimizerKind::Adam => UpdateRule::Adam { beta1, beta2, eps },
        OptimizerKind::AdamW => UpdateRule::AdamW { beta1, beta2, eps },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_the_global_batch_and_not_the_number_of_ranks() {
        let size = |n| GlobalBatchSize::new(n).unwrap();
        let check = |rule, in_use, expected: f64| {
            let lr = scale_lr(rule, 0.1, size(256), size(in_use));
            assert!((lr - expected).abs() < 1e-15, "{rule:?} {in_use}: {lr}");
        };
        check(ScalingRule::None, 1024, 0.1);
        check(ScalingRule::Linear, 1024, 0.4);
        check(ScalingRule::Linear, 128, 0.05);
        check(ScalingRule::Sqrt, 1024, 0.2);
        check(ScalingRule::Sqrt, 64, 0.05);
        check(ScalingRule::Linear, 256, 0.1);
    }
}
