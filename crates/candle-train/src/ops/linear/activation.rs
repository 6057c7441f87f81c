//! Bias and activation after a linear layer's product, in the same pass over memory.

use pulp::Arch;
use rayon::prelude::*;

use crate::Precision;
use crate::ops::activation::{Function, Gelu, GeluTanh, Relu};
use crate::ops::kernel::Epilogue;
use crate::ops::precision::round_block;
use crate::ops::simd::{vectorised, vectorised_for};

/// Values that stay in the first-level cache from one step to the next.
const CACHE_BLOCK: usize = 1 << 12;
/// Values per task of the passes of their own.
const BLOCK: usize = 1 << 13;

/// The activation of [`super::linear_activated`], with PyTorch's forms and gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearActivation {
    /// Nothing.
    Identity,
    /// max(z, 0), with gradient 0 at 0.
    Relu,
    /// z times the normal distribution function: `torch.nn.GELU()`.
    Gelu,
    /// GELU approximated by tanh: `torch.nn.GELU(approximate="tanh")`.
    GeluTanh,
}

impl LinearActivation {
    /// True if the gradient needs the input of the activation, rather than its result.
    pub(super) fn needs_its_input(self) -> bool {
        matches!(self, Self::Gelu | Self::GeluTanh)
    }
}

/// Adds the bias, keeps the sum where it is wanted, and applies the activation; under a half
/// precision, sum and result are rounded, as by autocast.
pub(super) struct Finish<'a> {
    pub(super) bias: Option<&'a [f32]>,
    pub(super) activation: LinearActivation,
    /// Columns of the result.
    pub(super) width: usize,
    /// Row-major, of the block's rows.
    pub(super) before: Option<&'a mut [f32]>,
    pub(super) precision: Precision,
}

impl Epilogue for Finish<'_> {
    fn is_wanted(&self) -> bool {
        let Self { bias, activation, before, precision, .. } = self;
        bias.is_some()
            || before.is_some()
            || *activation != LinearActivation::Identity
            || *precision != Precision::Fp32
    }

    fn finish(&mut self, level: Arch, first: usize, values: &mut [f32]) {
        let block = self.width * (CACHE_BLOCK / self.width.max(1)).max(1);
        for (i, values) in values.chunks_mut(block).enumerate() {
            self.finish_block(level, first * self.width + i * block, values);
        }
    }
}

impl Finish<'_> {
    /// Whole rows, from value `start` of the block on.
    fn finish_block(&mut self, level: Arch, start: usize, values: &mut [f32]) {
        if let Some(bias) = self.bias {
            vectorised_for(
                level,
                #[inline(always)]
                || {
                    for row in values.chunks_exact_mut(self.width) {
                        for (value, bias) in row.iter_mut().zip(bias) {
                            *value += bias;
                        }
                    }
                },
            );
        }
        round_block(values, self.precision);
        if let Some(before) = &mut self.before {
            before[start..][..values.len()].copy_from_slice(values);
        }
        if self.activation != LinearActivation::Identity {
            vectorised_for(
                level,
                #[inline(always)]
                || activate_block(values, self.activation),
            );
            round_block(values, self.precision);
        }
    }
}

#[inline(always)]
fn activate_block(values: &mut [f32], activation: LinearActivation) {
    // One loop per activation, so that each is vectorised.
    macro_rules! each {
        ($function:expr) => {
            for value in values.iter_mut() {
                *value = $function.value(*value);
            }
        };
    }
    match activation {
        LinearActivation::Identity => {}
        LinearActivation::Relu => each!(Relu),
        LinearActivation::Gelu => each!(Gelu),
        LinearActivation::GeluTanh => each!(GeluTanh),
    }
}

/// The gradient of the activation's value becomes that of its input, which is `before`, or
/// the rectifier's result; both gradients are rounded.
pub(super) fn pull_back(
    dy: &mut [f32],
    before: &[f32],
    activation: LinearActivation,
    precision: Precision,
) {
    dy.par_chunks_mut(BLOCK).zip(before.par_chunks(BLOCK)).for_each(|(dz, z)| {
        round_block(dz, precision);
        vectorised(
            #[inline(always)]
            || pull_back_block(dz, z, activation),
        );
        round_block(dz, precision);
    });
}

#[inline(always)]
fn pull_back_block(dz: &mut [f32], z: &[f32], activation: LinearActivation) {
    macro_rules! each {
        ($function:expr) => {
            for (g, z) in dz.iter_mut().zip(z) {
                *g = $function.gradient(*z, *g);
            }
        };
    }
    match activation {
        LinearActivation::Identity => {}
        LinearActivation::Relu => each!(Relu),
        LinearActivation::Gelu => each!(Gelu),
        LinearActivation::GeluTanh => each!(GeluTanh),
    }
}
