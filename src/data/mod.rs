//! Files on disk -> this rank's batches: survey, decode, augment, shard, prefetch.

use candle_core::Tensor;

/// Samples of one pass.
#[derive(Clone, Debug)]
pub struct Batch {
    /// (n, ...) f32: images as (n, channels, height, width), vectors as (n, features).
    pub inputs: Tensor,
    /// (n) u32 labels, or (n, targets) f32.
    pub targets: Tensor,
    /// Index of each sample in its data set.
    pub samples: Vec<u32>,
}
