//! Stochastic weight averaging: the share of each new weight, and the learning rate meanwhile.

use std::f64::consts::PI;

use crate::plan::{AnnealStrategy, SwaPlan, SwaRate};

/// Share of the weights in the plain average that they are the `count`-th to join (from 1).
pub fn swa_share(count: u64) -> f64 {
    1.0 / count.max(1) as f64
}

/// The learning rate of the step after `done` finished ones, as `torch.optim.swa_utils.SWALR` has
/// it: `from` is the schedule's at the start of the averaging. `None` before it, and where the
/// schedule goes on.
pub fn swa_lr(plan: &SwaPlan, done: u64, steps_per_epoch: u64, from: f64) -> Option<f64> {
    let SwaRate { lr, anneal_epochs, anneal_strategy } = plan.rate?;
    let epochs = done.checked_sub(plan.start)? / steps_per_epoch.max(1);
    let t = if anneal_epochs == 0 { 1.0 } else { epochs as f64 / anneal_epochs as f64 }.min(1.0);
    let alpha = match anneal_strategy {
        AnnealStrategy::Cos => (1.0 - (PI * t).cos()) / 2.0,
        AnnealStrategy::Linear => t,
    };
    Some(lr * alpha + from * (1.0 - alpha))
}
