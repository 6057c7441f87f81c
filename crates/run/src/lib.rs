//! A run and its folder: its start and end, its ranks as processes, what it records, and what is read
//! of it.
#![expect(missing_docs, reason = "\"The file.\" over `path: PathBuf` says nothing")]

#[cfg(feature = "cuda")]
use candle_train::cuda_libraries;
use candle_train::{nn, ops};
#[cfg(feature = "clusters")]
use ddprun_cluster as cluster;
use ddprun_data as data;
use ddprun_host::{child_process, failpoint, files, memory, registry, transport, user_error};
use ddprun_plan::{config, plan, terminal};
use ddprun_train::{checkpoint, collective, engine, event, loss, metric, model, optim};
#[cfg(test)]
use test_support::mutated;
use train_numbers::{rng, units};
pub mod launch;
pub mod record;
pub mod report;
pub mod sweep;
pub mod runs;
pub mod kinds;
pub mod worker;
pub mod session;
pub mod export;
#[cfg(feature = "clusters")]
pub mod jobs;
pub mod doctor;
