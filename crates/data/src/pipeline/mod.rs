//! Sampling order, and loading of batches.

mod mersenne;
mod weighted_sampling;
pub mod sampler;
pub mod audit;
mod request;
mod mixup;
mod collate;
pub mod loader;

pub use weighted_sampling::SampleWeights;
