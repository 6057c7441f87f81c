//! ddprun: one TOML file in, one distributed data-parallel training run out.
//!
//! Data flows forward through the modules below, and a module uses only modules declared above it
//! (`tests/layering.rs` holds us to it). Reading order = dependency order = the flow of data.
//!
//! ```text
//! resnet.toml ─config─▶ Experiment ─plan─▶ Plan ─launch─▶ one process per rank ─worker─▶ Engine::step ...
//! ```
//!
//! A program of your own registers kinds ([`kinds`], [`model`], [`optim`], [`loss`], [`metric`],
//! [`data`], [`record`], [`collective`]) and calls [`cli::run`]. What this project's tests and benchmarks need
//! beside that is in `internals`.
#![expect(missing_docs, reason = "\"The file.\" over `path: PathBuf` says nothing")]

#[cfg(test)]
use test_support::{mutated, skipped};
pub use train_numbers::{rng, units};
mod failpoint;
#[cfg(feature = "cuda")]
use candle_train::cuda_libraries;
use ddprun_plan::terminal;
pub use ddprun_plan::{config, plan};
pub mod user_error;
pub mod registry;
pub mod memory;
mod files;
pub mod event;
mod transport;
pub use candle_train::{nn, onnx, ops};
pub mod collective;
mod launch;
pub mod data;
pub mod model;
pub mod optim;
pub mod loss;
pub mod metric;
pub mod engine;
mod checkpoint;
pub mod record;
mod report;
pub mod sweep;
pub mod runs;
mod dashboard;
pub mod cluster;
pub mod kinds;
mod worker;
mod session;
pub mod predict;
mod init;
pub mod cli;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
#[doc(hidden)]
pub mod internals;
