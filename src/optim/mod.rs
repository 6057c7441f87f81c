//! Gradients -> new parameters: SGD, Adam, `AdamW`, learning-rate schedules, clipping.
//!
//! Everything here works on plain `f32` slices, one parameter at a time in registration order, and
//! does the same on every rank: the gradients that come in are already the mean over all ranks.

mod clip;
mod rule;
mod schedule;

pub use clip::{GradientNorm, clip_coefficient, clip_values, scale_and_measure};
pub use rule::{Moments, Update};
pub use schedule::{Plateau, Rates, Schedule};
