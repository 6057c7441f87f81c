//! Operations and layers with which [Candle](https://docs.rs/candle-core) trains: gradients that are right, fast on the CPU,
//! and on NVIDIA's GPUs with the feature `cuda`.

pub use train_numbers::{Convolutions, Precision, RopeScaling, rng, units};
#[cfg(feature = "cuda")]
pub mod cuda_libraries;
pub mod ops;
pub mod nn;
