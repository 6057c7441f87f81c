//! Which samples come when, and how they become batches.

mod mersenne;
pub mod sampler;
pub mod audit;
mod request;
mod mixup;
mod assemble;
pub mod loader;
