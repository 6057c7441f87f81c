#![doc = include_str!("../README.md")]

pub mod units;
pub mod arithmetic;
pub mod rng;

pub use arithmetic::{Bf16Instructions, Convolutions, Precision};
