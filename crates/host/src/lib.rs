//! The host that ddprun runs on: files that are whole or absent, memory, connections between ranks
//! and nodes, fail points; and how errors reach the user.
#![expect(missing_docs, reason = "\"The file.\" over `path: PathBuf` says nothing")]

use ddprun_plan::{config, plan, terminal};
#[cfg(test)]
use train_numbers::rng;
use train_numbers::units;
pub mod failpoint;
pub mod user_error;
pub mod registry;
pub mod memory;
pub mod child_process;
pub mod files;
pub mod http;
pub mod transport;
