//! A block of elements of one parameter, and the loops over it that an update rule fills in.
//!
//! Plain loops: they are compiled for the instruction set at hand, and as no two roundings are
//! contracted, every instruction set gives the same bits.

use crate::ops::vectorised;
use crate::optim::Preparation;

/// Elements of one parameter with their gradients and their state.
#[derive(Debug)]
pub struct Block<'a> {
    /// The elements.
    pub values: &'a mut [f32],
    pub(super) gradient: &'a [f32],
    /// What is done to a gradient as it is read.
    pub(super) preparation: Preparation,
    /// The first state that the rule names; empty where it names none.
    pub first: &'a mut [f32],
    pub second: &'a mut [f32],
    /// The average of the values; empty where there is none.
    pub(super) average: &'a mut [f32],
    /// The parameter's shape.
    pub shape: &'a [usize],
    /// Whether the rule treats it as a matrix ([`crate::plan::Matrices`]).
    pub is_matrix: bool,
}

/// From `start` to `end` by the share `weight`, with the roundings of `torch.lerp`: at 1 it is
/// `end`.
#[inline(always)]
pub fn lerp(start: f32, end: f32, weight: f32) -> f32 {
    if weight < 0.5 { start + weight * (end - start) } else { end - (end - start) * (1.0 - weight) }
}

/// Moves an average the share `follow` of its way to the values.
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
    /// Number of elements.
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// The gradient as it is used.
    pub fn prepared_gradient(&self) -> Vec<f32> {
        self.gradient.iter().map(|&g| self.preparation.of(g)).collect()
    }

    /// Replaces each value by `rule(value, gradient)`. Here and below, `rule` should be a `move`
    /// closure: what it only refers to might change with each value that is written, and then
    /// nothing is vectorised.
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

    /// Replaces each value by `rule(value, gradient, state)`, which also renews the state.
    #[inline(always)]
    pub fn each_with(&mut self, rule: impl Fn(f32, f32, &mut f32) -> f32) {
        let values = &mut *self.values;
        let gradient = self.gradient;
        let preparation = self.preparation;
        let state = &mut *self.first;
        vectorised(
            #[inline(always)]
            move || {
                let values = values.iter_mut().zip(gradient);
                for ((value, &g), first) in values.zip(state.iter_mut()) {
                    *value = rule(*value, preparation.of(g), first);
                }
            },
        );
    }

    /// Replaces each value by `rule(value, gradient, first, second)`, which also renews both kinds
    /// of state.
    #[inline(always)]
    pub fn each_with_two(&mut self, rule: impl Fn(f32, f32, &mut f32, &mut f32) -> f32) {
        let values = &mut *self.values;
        let gradient = self.gradient;
        let preparation = self.preparation;
        let first = &mut *self.first;
        let second = &mut *self.second;
        vectorised(
            #[inline(always)]
            move || {
                let state = first.iter_mut().zip(second.iter_mut());
                let values = values.iter_mut().zip(gradient);
                for ((value, &g), (first, second)) in values.zip(state) {
                    *value = rule(*value, preparation.of(g), first, second);
                }
            },
        );
    }

    /// Moves the average the share `follow` of its way to the values.
    pub(super) fn follow(&mut self, follow: f32) {
        follow_values(self.average, self.values, follow);
    }
}
