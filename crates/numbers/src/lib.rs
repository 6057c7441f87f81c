//! What every part of a training program shares, without a tensor: numbers with names, and
//! counter-based random draws.

pub mod units;
pub mod arithmetic;
pub mod rope;
pub mod rng;

pub use arithmetic::{Bf16Instructions, Convolutions, Precision};
pub use rope::RopeScaling;
