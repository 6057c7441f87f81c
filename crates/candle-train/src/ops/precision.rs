//! Autocast on the CPU: operands and results of matrix products are rounded to the half type, sums
//! are f32.
//!
//! Storage stays f32 (but for bf16 between convolutions, norms, activations and max pooling, see
//! `saved`), and every number that PyTorch's autocast would hold in a half tensor is one that this
//! half type can hold: operands are rounded before a product, results after it, and in backward the
//! incoming gradient and both produced gradients likewise. So the numbers are those of half storage
//! with f32 accumulation: fp16 values beyond 65504 become infinite and gradients below half of
//! 2^-24 become zero, which is what the gradient scaler is there for. Products of bf16 numbers
//! round their operands themselves, where the processor has instructions for them.

use std::borrow::Cow;

use half::f16;
use half::slice::HalfFloatSliceExt;
use pulp::Arch;
use rayon::prelude::*;

use super::column_sums::{column_sums, column_sums_of};
use super::element::{Element, to_bf16};
use super::kernel::{Epilogue, Format, Instructions};
use super::simd::{build, vectorised};
use crate::{Bf16Instructions, Precision};

/// Values rounded together; small enough for the first-level cache.
pub const BLOCK: usize = 4096;

/// The instructions that multiply bf16 numbers on this processor, if it has any.
pub fn bf16_instructions() -> Option<Bf16Instructions> {
    Instructions::best().map(Instructions::kind)
}

/// True if those instructions do more work at a time than the ones for f32 numbers: AMX's do, and those
/// of AMD's AVX512-BF16.
pub fn bf16_is_faster() -> bool {
    Instructions::best().is_some_and(Instructions::outrun_f32)
}

/// The values as the precision holds them.
pub(super) fn rounded(values: &[f32], precision: Precision) -> Cow<'_, [f32]> {
    if precision == Precision::Fp32 {
        return Cow::Borrowed(values);
    }
    Cow::Owned(build(values.len(), |start, copy| {
        copy.copy_from_slice(&values[start..][..copy.len()]);
        round_block(copy, precision);
    }))
}

/// The operand of a product of [`Format::of`] this precision: rounded, if the product does not.
pub(super) fn operand(values: &[f32], precision: Precision) -> Cow<'_, [f32]> {
    operand_of(Format::of(precision), values, precision)
}

/// The operand of a product of this format: rounded, if the product does not.
pub(super) fn operand_of(format: Format, values: &[f32], precision: Precision) -> Cow<'_, [f32]> {
    match format {
        Format::F32 => rounded(values, precision),
        Format::Bf16(_) => Cow::Borrowed(values),
    }
}

/// Column sums of an [`operand`], rounded: the gradient of a bias.
pub(super) fn bias_gradient<E: Element>(
    operand: &[E],
    columns: usize,
    precision: Precision,
) -> Vec<f32> {
    let mut sums = match Format::of(precision) {
        Format::F32 => column_sums(operand, columns),
        Format::Bf16(_) => column_sums_of(operand, columns, to_bf16),
    };
    round_block(&mut sums, precision);
    sums
}

/// Rounds every value to the nearest that the precision holds, ties to even.
pub(super) fn round(values: &mut [f32], precision: Precision) {
    if precision != Precision::Fp32 {
        values.par_chunks_mut(BLOCK).for_each(|block| round_block(block, precision));
    }
}

/// Rounding of a few values, on the calling thread.
pub fn round_block(block: &mut [f32], precision: Precision) {
    match precision {
        Precision::Fp32 => {}
        Precision::Bf16 => vectorised(
            #[inline(always)]
            || {
                for value in &mut *block {
                    *value = to_bf16(*value);
                }
            },
        ),
        Precision::Fp16 => {
            for block in block.chunks_mut(BLOCK) {
                let mut half = [f16::ZERO; BLOCK];
                let half = &mut half[..block.len()];
                half.convert_from_f32_slice(block);
                half.convert_to_f32_slice(block);
            }
        }
    }
}

/// Rounds the results of a product while they are in the cache.
#[derive(Clone, Copy)]
pub(super) struct Round(pub(super) Precision);

impl Epilogue for Round {
    fn finish(&mut self, _: Arch, _: usize, values: &mut [f32]) {
        round_block(values, self.0);
    }

    fn is_wanted(&self) -> bool {
        self.0 != Precision::Fp32
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn check(precision: Precision, cases: &[(f32, f32)]) {
        for &(value, expected) in cases {
            let mut values = vec![value; 17];
            round(&mut values, precision);
            assert!(
                values.iter().all(|v| v.to_bits() == expected.to_bits()),
                "{value}: {values:?}"
            );
        }
    }

    #[test]
    fn fp16_overflows_to_infinity_and_underflows_to_zero() {
        let tiny = 2f32.powi(-24);
        check(
            Precision::Fp16,
            &[
                (65504.0, 65504.0),
                (65520.0, f32::INFINITY),
                (-1e6, f32::NEG_INFINITY),
                (tiny, tiny),
                (tiny / 2.0, 0.0),
                (1e-9, 0.0),
                (1.0 + 2f32.powi(-11), 1.0),
                (1.0 + 3.0 * 2f32.powi(-11), 1.0 + 2f32.powi(-9)),
            ],
        );
    }

    #[test]
    fn bf16_keeps_the_range_and_eight_bits() {
        check(
            Precision::Bf16,
            &[
                (1e38, bf16::from_f32(1e38).to_f32()),
                (1.0 + 2f32.powi(-8), 1.0),
                (1e-30, bf16::from_f32(1e-30).to_f32()),
            ],
        );
        assert!((bf16::from_f32(1e-30).to_f32() / 1e-30 - 1.0).abs() < 4e-3);
    }

    #[test]
    fn bf16_is_rounded_as_by_the_crate_for_it() {
        let bits =
            (0..1u32 << 16).flat_map(|i| [0, 1, 0x7FFF, 0x8000, 0x8001].map(|x| i << 16 | x));
        let mut values: Vec<f32> = bits.map(f32::from_bits).collect();
        let expected: Vec<u32> =
            values.iter().map(|value| bf16::from_f32(*value).to_f32().to_bits()).collect();
        round(&mut values, Precision::Bf16);
        assert!(values.into_iter().map(f32::to_bits).eq(expected));
    }

    #[test]
    fn fp32_is_not_copied() {
        assert!(matches!(rounded(&[1.0], Precision::Fp32), Cow::Borrowed(_)));
    }
}
