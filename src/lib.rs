//! ddprun: one TOML file in, one distributed data-parallel training run out.
//!
//! A value walks forward through the rooms below, and a module uses only modules declared above it
//! (`tests/layering.rs` holds us to it). Reading order = dependency order = the walk of a value.
//!
//! ```text
//! resnet.toml ─config─▶ Experiment ─plan─▶ Plan ─launch─▶ one process per rank ─worker─▶ Engine::step ...
//! ```

pub use train_numbers::{rng, units};
pub mod memory;
#[cfg(test)]
use test_support::{mutated, skipped};
mod failpoint;
#[cfg(feature = "cuda")]
use candle_train::cuda_libraries;
pub mod files;
pub mod event;
pub mod config;
pub mod plan;
pub mod transport;
pub use candle_train::{nn, ops};
pub mod collective;
pub mod launch;
pub mod data;
pub mod model;
pub mod optim;
pub mod loss;
pub mod metric;
pub mod engine;
pub mod checkpoint;
pub mod record;
pub mod report;
pub mod sweep;
pub mod kinds;
pub mod worker;
pub mod cli;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
