//! The kernels of the GPU against the operations of the CPU, from the same text: compiled as C++, run on the CPU.
//!
//! What is tested is the arithmetic of each kernel, sums over blocks of threads included; not how it is launched, nor
//! how a GPU rounds.
#![expect(clippy::unwrap_used, reason = "a test helper that fails is a failing test")]
#![expect(clippy::disallowed_methods, reason = "a source that is written for the compiler")]
#![expect(unsafe_code, reason = "kernels are called through a library's symbols")]

mod emulator;
mod losses;
mod optimizer;
mod pointwise;
mod rows;
mod series;
mod shapes;
#[path = "../support/skipped.rs"]
mod skipped;

use candle_core::{Device, Tensor, Var};
use ddprun::rng::{Key, Purpose};

/// `n` numbers around 0 that differ by `stream`.
fn values(stream: u64, n: usize) -> Vec<f32> {
    let mut draws = Key::new(7, Purpose::Generate, stream, 0).stream();
    (0..n).map(|_| draws.normal() as f32).collect()
}

fn tensor(values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(values, shape, &Device::Cpu).unwrap()
}

fn var(values: &[f32], shape: &[usize]) -> Var {
    Var::from_tensor(&tensor(values, shape)).unwrap()
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// The operation's output, and the gradients of its operands for the gradient `dy` of the output.
fn reference(
    vars: &[&Var],
    dy: &[f32],
    run: impl FnOnce() -> candle_core::Result<Tensor>,
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let y = run().unwrap();
    let weight = tensor(dy, y.dims());
    let gradients = (&y * weight).unwrap().sum_all().unwrap().backward().unwrap();
    (flat(&y), vars.iter().map(|var| flat(gradients.get(var).unwrap())).collect())
}

/// Whether all numbers agree to `limit` of the largest.
#[track_caller]
fn agree(name: &str, found: &[f32], expected: &[f32], limit: f32) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let largest = expected.iter().fold(1e-3f32, |largest, v| largest.max(v.abs()));
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = (found - expected).abs() <= limit * largest;
        assert!(same, "{name}: element {i} is {found}, not {expected} (largest {largest})");
    }
}
