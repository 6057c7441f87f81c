//! Numbers as memory holds them: f32, or bf16 in half of it. What is computed with them is f32.

use std::ops::Range;

use candle_core::{CpuStorage, WithDType};
use half::bf16;

use super::scratch::Scratch;
use super::simd::{build, vectorised};

/// f32 or bf16.
pub(super) trait Element: WithDType + Default {
    /// The same number; `#[inline(always)]`.
    fn wide(self) -> f32;

    /// The nearest number of this type, ties to even; `#[inline(always)]`.
    fn nearest(value: f32) -> Self;

    /// The values, in `buffer` if they are not f32.
    fn read<'a>(values: &'a [Self], buffer: &'a mut WideBuffer) -> &'a [f32];

    /// Calls `change` with the values as f32, and keeps the nearest numbers of this type to its results.
    fn change<R>(values: &mut [Self], change: impl FnOnce(&mut [f32]) -> R) -> R;

    /// These values by their type.
    fn known(values: &[Self]) -> Numbers<'_>;

    /// The vector of a storage of this type.
    fn vector(storage: &mut CpuStorage) -> Option<&mut Vec<Self>>;
}

/// Numbers of either type.
#[derive(Clone, Copy)]
pub(super) enum Numbers<'a> {
    /// In f32.
    F32(&'a [f32]),
    /// In bf16.
    Bf16(&'a [bf16]),
}

impl<'a> From<&'a [f32]> for Numbers<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::F32(values)
    }
}

impl Numbers<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::Bf16(values) => values.len(),
        }
    }

    /// The numbers of `range` as f32, in `buffer` if they are bf16.
    pub(super) fn read<'a>(&'a self, range: Range<usize>, buffer: &'a mut WideBuffer) -> &'a [f32] {
        match self {
            Self::F32(values) => &values[range],
            Self::Bf16(values) => bf16::read(&values[range], buffer),
        }
    }
}

/// Work memory for bf16 numbers as f32.
#[derive(Default)]
pub(super) struct WideBuffer(Option<Scratch>);

impl Element for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn nearest(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn read<'a>(values: &'a [Self], _: &'a mut WideBuffer) -> &'a [f32] {
        values
    }

    #[inline(always)]
    fn change<R>(values: &mut [Self], change: impl FnOnce(&mut [f32]) -> R) -> R {
        change(values)
    }

    #[inline(always)]
    fn known(values: &[Self]) -> Numbers<'_> {
        Numbers::F32(values)
    }

    fn vector(storage: &mut CpuStorage) -> Option<&mut Vec<Self>> {
        match storage {
            CpuStorage::F32(values) => Some(values),
            _ => None,
        }
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn nearest(value: f32) -> Self {
        Self::from_bits((to_bf16(value).to_bits() >> 16) as u16)
    }

    fn read<'a>(values: &'a [Self], buffer: &'a mut WideBuffer) -> &'a [f32] {
        let wide = buffer.0.insert(Scratch::new(values.len()));
        convert(values, wide);
        wide
    }

    fn change<R>(values: &mut [Self], change: impl FnOnce(&mut [f32]) -> R) -> R {
        let mut wide = Scratch::new(values.len());
        convert(values, &mut wide);
        let result = change(&mut wide);
        convert(&wide, values);
        result
    }

    #[inline(always)]
    fn known(values: &[Self]) -> Numbers<'_> {
        Numbers::Bf16(values)
    }

    fn vector(storage: &mut CpuStorage) -> Option<&mut Vec<Self>> {
        match storage {
            CpuStorage::BF16(values) => Some(values),
            _ => None,
        }
    }
}

/// The nearest bf16 number, as `half::bf16::from_f32`, in a form that is vectorised.
#[inline(always)]
pub(super) fn to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    // Half of the last place, a little less if it is even: ties go to even.
    let nearest = bits.wrapping_add(0x7FFF + (bits >> 16 & 1));
    let bits = if value.is_nan() { bits | 0x0040_0000 } else { nearest };
    f32::from_bits(bits & 0xFFFF_0000)
}

/// Writes each number of `from` as the nearest of the other type, as far as there are both.
pub(super) fn convert<A: Element, B: Element>(from: &[A], to: &mut [B]) {
    vectorised(
        #[inline(always)]
        || {
            for (to, from) in to.iter_mut().zip(from) {
                *to = B::nearest(from.wide());
            }
        },
    );
}

/// The values as f32.
pub(super) fn widened(values: &[bf16]) -> Vec<f32> {
    build(values.len(), |start, wide| convert(&values[start..], wide))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bf16_number_stays_what_it_is_and_others_become_the_nearest() {
        let all: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        let mut wide = vec![0f32; all.len()];
        convert(&all, &mut wide);
        let mut again = vec![bf16::ZERO; all.len()];
        convert(&wide, &mut again);
        for ((number, wide), again) in all.iter().zip(&wide).zip(&again) {
            assert!(number.is_nan() && wide.is_nan() && again.is_nan() || number == again);
            assert!(number.is_nan() || number.to_f32().to_bits() == wide.to_bits());
        }
        for value in [1.0 + 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-8), -1e38, f32::MAX, 1e-40] {
            let exact = bf16::from_f32(value);
            assert_eq!(<bf16 as Element>::nearest(value).to_bits(), exact.to_bits());
        }
        let nan = f32::from_bits(0x7F80_0001);
        assert!(<bf16 as Element>::nearest(nan).is_nan());
    }

    #[test]
    fn numbers_of_both_types_are_read_and_changed_as_f32() {
        let mut halves: Vec<bf16> = (0..100i16).map(|i| bf16::from_f32(f32::from(i))).collect();
        let mut buffer = WideBuffer::default();
        assert_eq!(bf16::read(&halves[3..5], &mut buffer), [3.0, 4.0]);
        assert_eq!(Numbers::Bf16(&halves).read(98..100, &mut buffer), [98.0, 99.0]);
        bf16::change(&mut halves[1..3], |values| values.iter_mut().for_each(|v| *v += 0.125));
        assert_eq!(halves[..3], [0.0, 1.125, 2.125].map(bf16::from_f32));
        let mut values = [1.0, 2.0];
        f32::change(&mut values, |values| values[0] = 7.0);
        assert_eq!(f32::read(&values, &mut buffer), [7.0, 2.0]);
    }
}
