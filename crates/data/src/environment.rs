//! Where trained policies are tried.

use crate::transform::Pixels;

/// A task that a policy of actions is to solve: one attempt of it.
pub trait Environment: Send {
    /// What is seen now, in the units of the data.
    fn observe(&self) -> Vec<f32>;

    /// What each camera sees now; empty without cameras.
    fn images(&self) -> Vec<Pixels> {
        Vec::new()
    }

    /// Does `action`, in the units of the data.
    fn step(&mut self, action: &[f32]);

    /// Whether the goal is reached.
    fn is_solved(&self) -> bool;

    /// Actions after which an attempt is over.
    fn max_steps(&self) -> usize;

    /// Names of the numbers that are seen, then of those of an action, for tables.
    fn names(&self) -> &'static [&'static str];
}
