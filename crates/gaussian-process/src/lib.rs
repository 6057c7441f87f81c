#![doc = include_str!("../README.md")]

mod kernel;
mod fit;
mod process;

pub use kernel::Axis;
pub use process::{GaussianProcess, Prediction};
