//! Settings of a forward pass.

use std::sync::Arc;

use crate::ops::{BatchGroup, Segments};
use crate::rng::Key;
use crate::{Convolutions, Precision};

/// Settings of a forward pass: everything that it needs besides its input.
#[derive(Clone, Debug)]
pub struct ForwardContext {
    /// Training or evaluation.
    pub mode: Mode,
    /// Numbers of matrix products and convolutions.
    pub precision: Precision,
    /// Algorithms of convolutions.
    pub convolutions: Convolutions,
    /// True if blocks keep their input only and are run again in backward.
    pub activation_checkpointing: bool,
    /// The other parts of the batch, if batch norms take their statistics over all of them
    /// (`SyncBatchNorm`).
    pub sync_batchnorm: Option<BatchGroup>,
    /// Length of each sample, where they are padded to one length.
    pub lengths: Option<Lengths>,
    /// Texts that samples hold one behind the other; `None` if each is one.
    pub segments: Option<Segments>,
    /// True if the model computes as it would without its adapters.
    pub without_adapters: bool,
}

/// Training or evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Batch statistics and dropout.
    Train {
        /// Stream of this pass: of the seed, the step and the pass's place in the global batch, not
        /// of the rank.
        key: Key,
        /// Update of running statistics by this pass.
        track: Track,
    },
    /// Running statistics, no dropout.
    Eval,
}

/// Update of running statistics by a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    /// Not at all.
    Nothing,
    /// With the momentum of each layer.
    Momentum,
    /// As the plain average over batches, of which this is the n-th, from 1: PyTorch's `momentum =
    /// None`.
    Average(u64),
}

impl ForwardContext {
    /// A pass of evaluation.
    pub fn eval(precision: Precision) -> Self {
        Self::new(Mode::Eval, precision)
    }

    /// A pass of training whose random numbers come from `key`; running statistics learn from it.
    pub fn train(key: Key, precision: Precision) -> Self {
        Self::new(Mode::Train { key, track: Track::Momentum }, precision)
    }

    fn new(mode: Mode, precision: Precision) -> Self {
        Self {
            mode,
            precision,
            convolutions: Convolutions::Fast,
            activation_checkpointing: false,
            sync_batchnorm: None,
            lengths: None,
            segments: None,
            without_adapters: false,
        }
    }

    /// The context for a part of a model that is not in training.
    #[must_use]
    pub fn evaluating(&self) -> Self {
        Self { mode: Mode::Eval, ..self.clone() }
    }

    /// Computes convolutions as plain sums, as exact as f32 allows.
    #[must_use]
    pub fn direct(self) -> Self {
        Self { convolutions: Convolutions::Direct, ..self }
    }
}

/// Length of each sample where samples are padded to one length: steps beyond it are padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths(Arc<[usize]>);

impl Lengths {
    /// `steps` of each sample of a batch, in order.
    pub fn new(steps: Vec<usize>) -> Self {
        Self(steps.into())
    }

    /// Lengths after a layer that makes `steps` steps, each of `stride` of the former: a step is a
    /// sample's own if it begins in it. At least the first one is.
    pub fn strided(&self, steps: usize, stride: usize) -> Vec<usize> {
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
        assert_eq!(lengths.strided(16, 1), [1, 1, 4, 5, 16, 16]);
        assert_eq!(lengths.strided(4, 4), [1, 1, 1, 2, 4, 4]);
    }
}
