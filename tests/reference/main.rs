//! Every model, optimizer and scheduler against PyTorch: counts, keys, outputs, losses, gradients
//! and trajectories, from weights that are a formula of their names (`tests/golden`).
#![expect(clippy::unwrap_used, reason = "a test helper that fails is a failing test")]

mod bf16;
#[expect(dead_code, reason = "the update needs few kinds of arguments")]
#[path = "../../crates/candle-train/tests/kernels/emulator.rs"]
mod emulator;
mod families;
mod forecast;
#[path = "../support/golden.rs"]
mod golden;
mod gpt;
mod llama;
mod models;
mod nest;
mod optim;
mod padding;
mod policy;
mod policy_image;
mod resnet;
#[path = "../support/steps.rs"]
mod steps;
mod sync_batchnorm;

use test_support::skipped;
