//! One rank's work: a model, its loss, the sums over ranks, the optimizer, and the engine that steps.
#![expect(missing_docs, reason = "\"The file.\" over `path: PathBuf` says nothing")]

#[cfg(feature = "cuda")]
use candle_train::cuda_libraries;
use candle_train::{nn, onnx, ops};
use ddprun_data as data;
use ddprun_host::{failpoint, files, memory, registry, transport, user_error};
use ddprun_plan::{config, plan, terminal};
#[cfg(test)]
use test_support::skipped;
use train_numbers::{rng, units};
pub mod event;
pub mod collective;
pub mod model;
pub mod optim;
pub mod loss;
pub mod metric;
pub mod engine;
pub mod checkpoint;
