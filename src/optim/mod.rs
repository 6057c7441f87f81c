//! Gradients -> new parameters: SGD, Adam, `AdamW`, learning-rate schedules, clipping, averages of the
//! weights.
//!
//! Everything here works on plain `f32` slices and does the same on every rank. The gradients that come in
//! are sums over all ranks; the update turns them into means as it reads them.

mod average;
mod clip;
mod kernel;
mod rule;
mod schedule;

pub use average::ema_decay;
pub use clip::{
    GradientNorm, Preparation, clip_coefficient, shared_sum_of_squares, sum_of_squares,
};
pub use rule::{Moments, Part, Update};
pub use schedule::{Plateau, Rates, Schedule};
