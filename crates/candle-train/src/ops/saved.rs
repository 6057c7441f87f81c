//! Values that an operation keeps from forward to backward: as f32, or as bf16 where they were
//! rounded to bf16 anyway, which takes half the memory and half the time to read.

use std::ops::Range;

use super::scratch::{Scratch, filled_blocks, lengths};
use super::simd::{BLOCK, vectorised};
use crate::Precision;

/// Values that are read block by block.
pub(super) trait Values: Sync {
    /// How many there are.
    fn len(&self) -> usize;

    /// Those of `range`, in `room` if they are not held as f32.
    fn read<'a>(&'a self, range: Range<usize>, room: &'a mut Room) -> &'a [f32];
}

/// Where values are that were held in another form.
#[derive(Default)]
pub(super) struct Room(Option<Scratch>);

impl Values for [f32] {
    fn len(&self) -> usize {
        <[f32]>::len(self)
    }

    #[inline(always)]
    fn read<'a>(&'a self, range: Range<usize>, _: &'a mut Room) -> &'a [f32] {
        &self[range]
    }
}

/// Values that forward keeps.
pub(super) enum Saved {
    /// As they are.
    F32(Vec<f32>),
    /// The upper halves of f32 numbers whose lower halves are zero.
    Bf16(Vec<u16>),
}

impl Values for Saved {
    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(halves) => halves.len(),
        }
    }

    fn read<'a>(&'a self, range: Range<usize>, room: &'a mut Room) -> &'a [f32] {
        let halves = match self {
            Self::F32(values) => return &values[range],
            Self::Bf16(halves) => &halves[range],
        };
        let values = room.0.insert(Scratch::new(halves.len()));
        vectorised(
            #[inline(always)]
            || {
                for (value, half) in values.iter_mut().zip(halves) {
                    *value = f32::from_bits(u32::from(*half) << 16);
                }
            },
        );
        values
    }
}

impl Saved {
    /// Values that were rounded to `precision`.
    pub(super) fn new(values: Vec<f32>, precision: Precision) -> Self {
        if precision != Precision::Bf16 {
            return Self::F32(values);
        }
        let blocks = lengths(values.len(), BLOCK);
        let ([halves], _) = filled_blocks(&blocks, |index, [halves]| {
            halve(&values[index * BLOCK..][..halves.len()], halves);
        });
        Self::Bf16(halves)
    }

    /// Blocks of these lengths, which `fill` is given zeroed, in the cache, and rounds to
    /// `precision`; and what it returns of each.
    pub(super) fn of_blocks<R: Send>(
        lens: &[usize],
        precision: Precision,
        fill: impl Fn(usize, &mut [f32]) -> R + Sync,
    ) -> (Self, Vec<R>) {
        if precision != Precision::Bf16 {
            let ([values], found) = filled_blocks(lens, |index, [values]| fill(index, values));
            return (Self::F32(values), found);
        }
        let ([halves], found) = filled_blocks(lens, |index, [halves]: [&mut [u16]; 1]| {
            let mut values = Scratch::new(halves.len());
            values.fill(0.0);
            let found = fill(index, &mut values);
            halve(&values, halves);
            found
        });
        (Self::Bf16(halves), found)
    }
}

/// The upper halves of numbers that bf16 holds; NaN stays one.
fn halve(values: &[f32], halves: &mut [u16]) {
    vectorised(
        #[inline(always)]
        || {
            for (half, value) in halves.iter_mut().zip(values) {
                let upper = (value.to_bits() >> 16) as u16;
                *half = if value.is_nan() { upper | 0x40 } else { upper };
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::precision::round;
    use crate::ops::testing::values;

    #[test]
    fn what_was_rounded_is_read_back_to_the_bit() {
        let mut x = values("saved", 0, 3 * BLOCK + 5);
        x[7] = f32::INFINITY;
        x[8] = -0.0;
        for precision in [Precision::Fp32, Precision::Bf16, Precision::Fp16] {
            round(&mut x, precision);
            let saved = Saved::new(x.clone(), precision);
            let mut room = Room::default();
            assert_eq!(saved.read(2..x.len(), &mut room), &x[2..]);
            assert_eq!(matches!(saved, Saved::Bf16(_)), precision == Precision::Bf16);
            let lens = lengths(x.len(), 1000);
            let (saved, found) = Saved::of_blocks(&lens, precision, |index, block| {
                block.copy_from_slice(&x[index * 1000..][..block.len()]);
                block.len()
            });
            assert_eq!((saved.len(), found), (x.len(), lens));
            assert_eq!(saved.read(0..x.len(), &mut Room::default()), x);
        }
    }

    #[test]
    fn no_nan_becomes_a_number() {
        let nan = f32::from_bits(0x7F80_0001);
        let saved = Saved::new(vec![nan], Precision::Bf16);
        assert!(saved.read(0..1, &mut Room::default())[0].is_nan());
    }
}
