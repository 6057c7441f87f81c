//! A block of elements of one parameter, and the loops in which an update rule runs.
//!
//! Plain loops, compiled for each instruction set; multiplications and additions are never fused,
//! so all instruction sets give bitwise identical results.

use crate::ops::vectorised;
use crate::optim::Preparation;

/// Elements of one parameter with their gradients and their state.
#[derive(Debug)]
pub struct Block<'a> {
    /// The elements.
    pub values: &'a mut [f32],
    pub(super) gradient: &'a [f32],
    /// Applied to a gradient as it is read.
    pub(super) preparation: Preparation,
    /// The optimizer's state tensors, in the order of
    /// [`Optimizer::state`](super::Optimizer::state).
    pub state: Vec<&'a mut [f32]>,
    /// Average of the values; empty if there is none.
    pub(super) average: &'a mut [f32],
    /// Shape of the parameter.
    pub shape: &'a [usize],
    /// True if the rule treats it as a matrix ([`crate::plan::Matrices`]).
    pub is_matrix: bool,
}

/// Interpolates from `start` to `end` by `weight`, with the roundings of `torch.lerp`: `end` at 1.
#[inline(always)]
pub fn lerp(start: f32, end: f32, weight: f32) -> f32 {
    if weight < 0.5 { start + weight * (end - start) } else { end - (end - start) * (1.0 - weight) }
}

/// Moves an average towards the values by the fraction `follow` of their difference.
pub fn follow_values(average: &mut [f32], values: &[f32], follow: f32) {
    vectorised(
        #[inline(always)]
        move || {
            for (average, &value) in average.iter_mut().zip(values) {
                *average = lerp(*average, value, follow);
            }
        },
    );
}

impl Block<'_> {
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// The gradient after its [`Preparation`].
    pub fn prepared_gradient(&self) -> Vec<f32> {
        self.gradient.iter().map(|&g| self.preparation.of(g)).collect()
    }

    /// Replaces each value by `rule(value, gradient)`. Here and below, `rule` should be a `move`
    /// closure: captured references might alias the values, and then nothing is vectorised.
    #[inline(always)]
    pub fn each(&mut self, rule: impl Fn(f32, f32) -> f32) {
        let values = &mut *self.values;
        let gradient = self.gradient;
        let preparation = self.preparation;
        vectorised(
            #[inline(always)]
            move || {
                for (value, &g) in values.iter_mut().zip(gradient) {
                    *value = rule(*value, preparation.of(g));
                }
            },
        );
    }

    /// Replaces each value by `rule(value, gradient, [state, ..])`, which also updates its element
    /// of each state tensor.
    ///
    /// # Panics
    ///
    /// The optimizer has another number of state tensors, or one that is not as long as the block.
    #[inline(always)]
    pub fn each_with_state<const N: usize>(
        &mut self,
        rule: impl Fn(f32, f32, [&mut f32; N]) -> f32,
    ) {
        assert_eq!(self.state.len(), N, "a loop renews the state tensors that are named");
        let n = self.values.len();
        let values = &mut *self.values;
        let gradient = &self.gradient[..n];
        let preparation = self.preparation;
        let Some(state) = self.state.first_chunk_mut::<N>() else { return };
        // The compiler must know that all lengths are equal, or nothing is vectorised.
        let mut state = state.each_mut().map(|tensor| &mut tensor[..n]);
        vectorised(
            #[inline(always)]
            move || {
                for i in 0..n {
                    let elements = state.each_mut().map(
                        #[inline(always)]
                        |tensor| &mut tensor[i],
                    );
                    values[i] = rule(values[i], preparation.of(gradient[i]), elements);
                }
            },
        );
    }

    pub(super) fn follow(&mut self, follow: f32) {
        follow_values(self.average, self.values, follow);
    }
}
