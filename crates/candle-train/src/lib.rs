#![doc = include_str!("../README.md")]

pub use train_numbers::{Bf16Instructions, Convolutions, Precision, rng, units};
#[cfg(feature = "cuda")]
pub mod cuda_libraries;
pub mod onnx;
pub mod ops;
pub mod nn;
