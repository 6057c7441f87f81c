//! The program as its user has it: the real binary, its exit codes, its words and what it leaves
//! behind.
//!
//! Every test has a folder of its own, and checks in the end that no process and no temporary file
//! is left.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test binary: a failed helper is a failed test"
)]

mod adapters;
mod ask_tell;
mod averaged;
mod bad_input;
mod browser;
mod checked;
mod clocks;
mod clusters;
mod commands;
mod deep_images;
mod docs;
mod doctor;
mod drawn;
mod elastic;
mod endings;
mod exported;
mod failpoints;
mod families;
mod generated;
mod given_up;
#[path = "../support/harness/mod.rs"]
mod harness;
mod hf_dataset;
mod hooks;
mod hub;
mod init;
mod instructions;
mod json;
mod launchers;
mod learn;
mod limits;
mod looked_after;
mod machines;
mod measured;
mod media;
mod meetings;
mod memory;
mod mirror;
mod mpi;
mod network;
mod oom;
mod outputs;
mod packaging;
mod pages;
mod pairs;
mod policies;
mod preferences;
mod predictions;
mod power_loss;
mod python;
mod python_data;
mod recipes;
mod resume;
mod same_bits;
mod same_run;
mod scraped;
mod served_model;
mod shared_sweeps;
mod sharded;
mod slurm;
mod stops;
mod strace;
mod surroundings;
mod sweeps;
mod tables;
mod tensorboard;
mod wandb;
mod watched;
mod webdataset;
mod weights;
mod words;

use test_support::skipped;
