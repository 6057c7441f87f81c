//! Which samples come when, and how they become batches.

mod mersenne;
mod weighted_sampling;
pub mod sampler;
pub mod audit;
mod request;
mod mixup;
mod collate;
pub mod loader;

pub use weighted_sampling::SampleWeights;
