//! Which samples come when, and how they become batches.

mod mersenne;
mod odds;
pub mod sampler;
pub mod audit;
mod request;
mod mixup;
mod assemble;
pub mod loader;

pub use odds::Odds;
