#![doc = include_str!("../README.md")]

pub use train_numbers::{Convolutions, Precision, RopeScaling, rng, units};
#[cfg(feature = "cuda")]
pub mod cuda_libraries;
pub mod ops;
pub mod nn;
