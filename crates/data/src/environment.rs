//! Simulated environments in which trained policies are evaluated.

use crate::transform::Pixels;

/// A task that a policy of actions is to solve: one attempt of it.
pub trait Environment: Send {
    /// The current observation, in the units of the data.
    fn observe(&self) -> Vec<f32>;

    /// The current image of each camera; empty without cameras.
    fn images(&self) -> Vec<Pixels> {
        Vec::new()
    }

    /// Does `action`, in the units of the data.
    fn step(&mut self, action: &[f32]);

    /// True if the goal is reached.
    fn is_solved(&self) -> bool;

    /// Actions after which an attempt is over.
    fn max_steps(&self) -> usize;

    /// Names of the numbers that are seen, then of those of an action, for tables.
    fn names(&self) -> &'static [&'static str];
}
