//! How long each sample is, where samples are padded to one length.

use std::sync::Arc;

/// How many steps of each sample are its own; those behind them are padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths(Arc<[usize]>);

impl Lengths {
    /// As the samples came.
    pub fn new(steps: Vec<usize>) -> Self {
        Self(steps.into())
    }

    /// The same where `steps` have `stride` of the former each: a step is a sample's own if it
    /// begins in it. At least the first one is.
    pub fn among(&self, steps: usize, stride: usize) -> Vec<usize> {
        let own = |&length: &usize| length.div_ceil(stride.max(1)).clamp(1, steps.max(1));
        self.0.iter().map(own).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_several_is_a_samples_own_if_it_begins_in_it() {
        let lengths = Lengths::new(vec![0, 1, 4, 5, 16, 20]);
        assert_eq!(lengths.among(16, 1), [1, 1, 4, 5, 16, 16]);
        assert_eq!(lengths.among(4, 4), [1, 1, 1, 2, 4, 4]);
    }
}
