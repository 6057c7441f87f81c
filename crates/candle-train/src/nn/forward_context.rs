//! What a forward pass needs beside its input.

use crate::nn::Lengths;
use crate::ops::BatchGroup;
use crate::rng::Key;
use crate::{Convolutions, Precision};

/// What a forward pass needs beside its input.
#[derive(Clone, Debug)]
pub struct ForwardContext {
    /// Training or evaluation.
    pub mode: Mode,
    /// Numbers of matrix products and convolutions.
    pub precision: Precision,
    /// How convolutions are computed.
    pub convolutions: Convolutions,
    /// Whether blocks keep their input only and are run again in backward.
    pub activation_checkpointing: bool,
    /// The other parts of the batch, if batch norms take their statistics over all of them
    /// (`SyncBatchNorm`).
    pub sync_batchnorm: Option<BatchGroup>,
    /// How long each sample is, where they are padded to one length.
    pub lengths: Option<Lengths>,
}

/// Training or evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Batch statistics and dropout.
    Train {
        /// Stream of this pass: of the seed, the step and the pass's place in the global batch, not
        /// of the rank.
        key: Key,
        /// How running statistics learn from this pass.
        track: Track,
    },
    /// Running statistics, no dropout.
    Eval,
}

/// How running statistics learn from a pass.
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
        }
    }

    /// The same for a part of a model that is not in training.
    #[must_use]
    pub fn evaluating(&self) -> Self {
        Self { mode: Mode::Eval, ..self.clone() }
    }

    /// The same with convolutions as plain sums, as exact as f32 allows.
    #[must_use]
    pub fn direct(self) -> Self {
        Self { convolutions: Convolutions::Direct, ..self }
    }
}
