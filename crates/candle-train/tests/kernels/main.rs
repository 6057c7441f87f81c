//! The kernels of the GPU against the operations of the CPU, from the same text: compiled as C++,
//! run on the CPU.
//!
//! The arithmetic of each kernel is tested, sums over blocks of threads included; not its launch, nor
//! the rounding of a GPU.
#![expect(clippy::unwrap_used, reason = "a test helper that fails is a failing test")]

mod attention;
mod columns;
mod emulator;
mod grouped;
mod halves;
mod losses;
mod optimizer;
mod pointwise;
mod rows;
mod series;
mod shapes;
mod source;

use candle_core::{Device, Tensor, Var};
use half::{bf16, f16};
use test_support::skipped;

use emulator::{Arg, agree, values};

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

/// Values as f32, bf16 or f16.
struct Typed {
    kind: &'static str,
    singles: Vec<f32>,
    halves: Vec<u16>,
}

impl Typed {
    /// `values` as "f32", "bf16" or "f16".
    fn new(kind: &'static str, values: &[f32]) -> Self {
        let (mut singles, mut halves) = (Vec::new(), Vec::new());
        match kind {
            "bf16" => halves.extend(values.iter().map(|v| bf16::from_f32(*v).to_bits())),
            "f16" => halves.extend(values.iter().map(|v| f16::from_f32(*v).to_bits())),
            _ => singles.extend(values),
        }
        Self { kind, singles, halves }
    }

    /// As kernels read and write them.
    fn arg(&mut self) -> Arg<'_> {
        match self.kind {
            "f32" => Arg::Out(&mut self.singles),
            _ => Arg::Halves(&mut self.halves),
        }
    }

    /// As f32.
    fn values(&self) -> Vec<f32> {
        match self.kind {
            "bf16" => self.halves.iter().map(|bits| bf16::from_bits(*bits).to_f32()).collect(),
            "f16" => self.halves.iter().map(|bits| f16::from_bits(*bits).to_f32()).collect(),
            _ => self.singles.clone(),
        }
    }
}
