//! ddprun: one TOML file in, one distributed data-parallel training run out.
//!
//! Data flows forward through the packages below and the modules of each, and a module uses only
//! modules declared above it (`tests/layering.rs` holds us to it).
//!
//! ```text
//! resnet.toml ─config─▶ Experiment ─plan─▶ Plan ─launch─▶ one process per rank ─worker─▶ Engine::step ...
//! ```
//!
//! A program of your own registers kinds ([`kinds`], [`model`], [`optim`], [`loss`], [`metric`],
//! [`data`], [`record`], [`collective`]) and calls [`cli::run`]. What this project's tests and benchmarks need
//! beside that is in `internals`.
#![expect(missing_docs, reason = "\"The file.\" over `path: PathBuf` says nothing")]

pub use candle_train::{nn, onnx, ops};
pub use ddprun_data as data;
use ddprun_host::{failpoint, files, transport};
pub use ddprun_host::{memory, registry, user_error};
use ddprun_plan::terminal;
pub use ddprun_plan::{config, plan};
pub use ddprun_run::{cluster, kinds, record, runs, sweep};
use ddprun_run::{dashboard, launch, report, session, worker};
use ddprun_train::checkpoint;
pub use ddprun_train::{collective, engine, event, loss, metric, model, optim};
#[cfg(test)]
use test_support::mutated;
pub use train_numbers::{rng, units};
pub mod predict;
mod init;
pub mod cli;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
#[doc(hidden)]
pub mod internals;
