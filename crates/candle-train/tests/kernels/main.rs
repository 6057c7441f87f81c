//! The kernels of the GPU against the operations of the CPU, from the same text: compiled as C++,
//! run on the CPU.
//!
//! What is tested is the arithmetic of each kernel, sums over blocks of threads included; not how
//! it is launched, nor how a GPU rounds.
#![expect(clippy::unwrap_used, reason = "a test helper that fails is a failing test")]

mod attention;
mod columns;
mod emulator;
mod grouped;
mod halves;
mod losses;
mod names;
mod numbers;
mod nvrtc;
mod optimizer;
mod pointwise;
mod rows;
mod series;
mod shapes;
mod typed;

use candle_core::{Device, Tensor, Var};
use numbers::{agree, values};
use test_support::skipped;

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
