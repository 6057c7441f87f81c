//! ddprun: one TOML file in, one distributed data-parallel training run out.
//!
//! A value walks forward through the rooms below, and a module uses only modules declared above it
//! (`tests/layering.rs` holds us to it). Reading order = dependency order = the walk of a value.
//!
//! ```text
//! resnet.toml ─config─▶ Experiment ─plan─▶ Plan ─launch─▶ one process per rank ─worker─▶ Engine::step ...
//! ```
//!
//! A program of your own registers kinds ([`kinds`], [`model`], [`optim`], [`loss`], [`metric`], [`data`]) and calls
//! [`cli::run`]. Modules that are hidden here are public for this project's tests and benchmarks alone.

#[cfg(test)]
use test_support::{mutated, skipped};
pub use train_numbers::{rng, units};
mod failpoint;
#[cfg(feature = "cuda")]
use candle_train::cuda_libraries;
use ddprun_plan::terminal;
pub use ddprun_plan::{config, plan};
pub mod registry;
pub mod memory;
#[doc(hidden)]
pub mod files;
#[doc(hidden)]
pub mod event;
#[doc(hidden)]
pub mod transport;
pub use candle_train::{nn, ops};
#[doc(hidden)]
pub mod collective;
#[doc(hidden)]
pub mod launch;
pub mod data;
pub mod model;
pub mod optim;
pub mod loss;
pub mod metric;
pub mod engine;
#[doc(hidden)]
pub mod checkpoint;
pub mod record;
#[doc(hidden)]
pub mod report;
pub mod sweep;
pub mod kinds;
#[doc(hidden)]
pub mod worker;
pub mod cli;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
