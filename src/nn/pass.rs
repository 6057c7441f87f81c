//! What a forward pass needs beside its input.

use crate::plan::Precision;
use crate::rng::Key;

/// What a forward pass needs beside its input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// Training or evaluation.
    pub mode: Mode,
    /// Numbers of matrix products and convolutions.
    pub precision: Precision,
}

/// Training or evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Batch statistics and dropout.
    Train {
        /// Stream of this pass: of the seed, the step and the pass's place in the global batch, not of
        /// the rank.
        key: Key,
        /// Whether running statistics learn from this pass.
        track_statistics: bool,
    },
    /// Running statistics, no dropout.
    Eval,
}

impl Pass {
    /// A pass of evaluation.
    pub fn eval(precision: Precision) -> Self {
        Self { mode: Mode::Eval, precision }
    }

    /// A pass of training whose random numbers come from `key`; running statistics learn from it.
    pub fn train(key: Key, precision: Precision) -> Self {
        Self { mode: Mode::Train { key, track_statistics: true }, precision }
    }
}
