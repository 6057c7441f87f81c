//! Values of an operation as f32, or as bf16 where they are rounded to bf16 anyway, which takes
//! half the memory and half the time to read.

use candle_core::{CpuStorage, Shape, Storage, Tensor, op::BackpropOp};
use half::bf16;

use super::element::{Numbers, WideBuffer, convert, widened};
use super::precision::round;
use super::scratch::{Scratch, filled_blocks, lengths};
use super::simd::{BLOCK, build};
use crate::Precision;

/// Values that forward keeps or hands on, and gradients.
pub(super) enum Saved {
    /// As they are.
    F32(Vec<f32>),
    /// Rounded.
    Bf16(Vec<bf16>),
}

impl Saved {
    /// Values, rounded to bf16 if `precision` is that, and only then.
    pub(super) fn new(values: Vec<f32>, precision: Precision) -> Self {
        if precision != Precision::Bf16 {
            return Self::F32(values);
        }
        Self::Bf16(build(values.len(), |start, halves| convert(&values[start..], halves)))
    }

    /// A copy of the same type.
    pub(super) fn same_as(numbers: Numbers<'_>) -> Self {
        let held = match numbers {
            Numbers::F32(_) => Precision::Fp32,
            Numbers::Bf16(_) => Precision::Bf16,
        };
        Self::copy_of(numbers, held)
    }

    /// A copy, held as `held`.
    pub(super) fn copy_of(numbers: Numbers<'_>, held: Precision) -> Self {
        Self::filled(numbers.len(), BLOCK, held, |start, copy| {
            let mut buffer = WideBuffer::default();
            copy.copy_from_slice(numbers.read(start..start + copy.len(), &mut buffer));
        })
    }

    /// Blocks of these lengths, each of which `fill` writes whole, in the cache; and what it
    /// returns of each. They are rounded to bf16 if `precision` is that, and only then.
    pub(super) fn of_blocks<R: Send>(
        lens: &[usize],
        precision: Precision,
        fill: impl Fn(usize, &mut [f32]) -> R + Sync,
    ) -> (Self, Vec<R>) {
        if precision != Precision::Bf16 {
            let ([values], results) = filled_blocks(lens, |index, [values]| fill(index, values));
            return (Self::F32(values), results);
        }
        let ([halves], results) = filled_blocks(lens, |index, [halves]: [&mut [bf16]; 1]| {
            let mut values = Scratch::new(halves.len());
            let result = fill(index, &mut values);
            convert(&values, halves);
            result
        });
        (Self::Bf16(halves), results)
    }

    /// [`Saved::of_blocks`] of `n` values, in blocks of `block`: `fill(start, values)`.
    pub(super) fn filled(
        n: usize,
        block: usize,
        precision: Precision,
        fill: impl Fn(usize, &mut [f32]) + Sync,
    ) -> Self {
        Self::of_blocks(&lengths(n, block), precision, |index, values| fill(index * block, values))
            .0
    }

    /// f32 numbers rounded to `precision`.
    pub(super) fn rounded(mut self, precision: Precision) -> Self {
        if let Self::F32(values) = &mut self {
            round(values, precision);
        }
        self
    }

    /// The values by their type.
    pub(super) fn numbers(&self) -> Numbers<'_> {
        match self {
            Self::F32(values) => Numbers::F32(values),
            Self::Bf16(values) => Numbers::Bf16(values),
        }
    }

    /// As f32.
    pub(super) fn wide(self) -> Vec<f32> {
        match self {
            Self::F32(values) => values,
            Self::Bf16(values) => widened(&values),
        }
    }

    /// The values as a storage of Candle's.
    pub(super) fn storage(self) -> Storage {
        Storage::Cpu(match self {
            Self::F32(values) => CpuStorage::F32(values),
            Self::Bf16(values) => CpuStorage::BF16(values),
        })
    }

    /// A tensor of them.
    pub(super) fn tensor(self, shape: impl Into<Shape>) -> Tensor {
        Tensor::from_storage(self.storage(), shape, BackpropOp::none(), false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::values;

    #[test]
    fn what_was_rounded_is_read_back_to_the_bit() {
        let mut x = values("saved", 0, 3 * BLOCK + 5);
        x[7] = f32::INFINITY;
        x[8] = -0.0;
        for precision in [Precision::Fp32, Precision::Bf16, Precision::Fp16] {
            round(&mut x, precision);
            let saved = Saved::new(x.clone(), precision);
            assert_eq!(matches!(saved, Saved::Bf16(_)), precision == Precision::Bf16);
            assert_eq!(saved.wide(), x);
            let lens = lengths(x.len(), 1000);
            let (saved, found) = Saved::of_blocks(&lens, precision, |index, block| {
                block.copy_from_slice(&x[index * 1000..][..block.len()]);
                block.len()
            });
            assert_eq!((saved.wide(), found), (x.clone(), lens));
        }
    }

    #[test]
    fn no_nan_becomes_a_number() {
        let nan = f32::from_bits(0x7F80_0001);
        let saved = Saved::new(vec![nan], Precision::Bf16);
        assert!(saved.wide()[0].is_nan());
    }
}
