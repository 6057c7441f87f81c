//! Autocast on the CPU: operands and results of matrix products are rounded to the half type, sums
//! are f32.
//!
//! Storage stays f32, but every number that PyTorch's autocast would hold in a half tensor is one
//! that this half type can hold: operands are rounded before a product, results after it, and in
//! backward the incoming gradient and both produced gradients likewise. So the numbers are those of
//! half storage with f32 accumulation: fp16 values beyond 65504 become infinite and gradients below
//! half of 2^-24 become zero, which is what the gradient scaler is there for.

use std::borrow::Cow;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;

use crate::Precision;

/// Values rounded together; small enough for the first-level cache.
pub const BLOCK: usize = 4096;

/// The values as the precision holds them.
pub(super) fn rounded(values: &[f32], precision: Precision) -> Cow<'_, [f32]> {
    if precision == Precision::Fp32 {
        return Cow::Borrowed(values);
    }
    let mut copy = values.to_vec();
    round(&mut copy, precision);
    Cow::Owned(copy)
}

/// Rounds every value to the nearest that the precision holds, ties to even.
pub(super) fn round(values: &mut [f32], precision: Precision) {
    if precision != Precision::Fp32 {
        values.par_chunks_mut(BLOCK).for_each(|block| round_block(block, precision));
    }
}

/// [`round`] of at most [`BLOCK`] values, on the calling thread.
pub fn round_block(block: &mut [f32], precision: Precision) {
    match precision {
        Precision::Fp32 => {}
        Precision::Bf16 => {
            for value in block {
                *value = bf16::from_f32(*value).to_f32();
            }
        }
        Precision::Fp16 => {
            let mut half = [f16::ZERO; BLOCK];
            let half = &mut half[..block.len()];
            half.convert_from_f32_slice(block);
            half.convert_to_f32_slice(block);
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn fp32_is_not_copied() {
        assert!(matches!(rounded(&[1.0], Precision::Fp32), Cow::Borrowed(_)));
    }
}
