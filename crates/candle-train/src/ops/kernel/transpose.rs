//! Matrices that are transposed, square by square in registers.

use pulp::Arch;

use super::level::best;
use crate::ops::simd::vectorised_for;

/// Rows and columns of a square.
const SQUARE: usize = 8;

type Square = [[f32; SQUARE]; SQUARE];

/// A matrix whose rows begin `stride` numbers after each other.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Strided<T> {
    pub(in crate::ops) values: T,
    pub(in crate::ops) stride: usize,
}

/// `to[r][c] = from[c][r]` for all `rows` and `columns` of `to`. To be called from code of the
/// instruction set `level`.
#[inline(always)]
pub(super) fn transpose(
    level: Arch,
    from: Strided<&[f32]>,
    to: Strided<&mut [f32]>,
    (rows, columns): (usize, usize),
) {
    let Strided { values: to, stride: to_stride } = to;
    let whole = |n: usize| n / SQUARE * SQUARE;
    for column in (0..whole(columns)).step_by(SQUARE) {
        for row in (0..whole(rows)).step_by(SQUARE) {
            let values = &from.values[column * from.stride + row..];
            let from = Strided { values, stride: from.stride };
            let values = &mut to[row * to_stride + column..];
            transpose_square(level, from, Strided { values, stride: to_stride });
        }
    }
    for row in 0..rows {
        let first = if row < whole(rows) { whole(columns) } else { 0 };
        for column in first..columns {
            to[row * to_stride + column] = from.values[column * from.stride + row];
        }
    }
}

/// [`transpose`] from code of any instruction set, by the processor's best.
pub(in crate::ops) fn transpose_best(
    from: Strided<&[f32]>,
    to: Strided<&mut [f32]>,
    shape: (usize, usize),
) {
    let (level, Strided { values, stride }) = (best(), to);
    vectorised_for(
        level,
        #[inline(always)]
        || transpose(level, from, Strided { values: &mut *values, stride }, shape),
    );
}

/// [`transpose`] of one square.
#[inline(always)]
fn transpose_square(level: Arch, from: Strided<&[f32]>, to: Strided<&mut [f32]>) {
    let Strided { values: to, stride: to_stride } = to;
    let mut square = Square::default();
    for (values, from) in square.iter_mut().zip(from.values.chunks(from.stride)) {
        values.copy_from_slice(&from[..SQUARE]);
    }
    for (values, to) in transposed(level, square).iter().zip(to.chunks_mut(to_stride)) {
        to[..SQUARE].copy_from_slice(values);
    }
}

#[inline(always)]
fn transposed(level: Arch, square: Square) -> Square {
    match level {
        #[cfg(target_arch = "x86_64")]
        Arch::V4(simd) => in_registers(*simd, square),
        #[cfg(target_arch = "x86_64")]
        Arch::V3(simd) => in_registers(simd, square),
        _ => std::array::from_fn(|row| square.map(|values| values[row])),
    }
}

/// Pairs, then fours, then halves. The compiler does not find this by itself: it moves number after
/// number.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn in_registers(simd: pulp::x86::V3, square: Square) -> Square {
    const LOW: i32 = 0b01_00_01_00;
    const HIGH: i32 = 0b11_10_11_10;
    const FIRST: i32 = 0x20;
    const SECOND: i32 = 0x31;
    let avx = simd.avx;
    let [r0, r1, r2, r3, r4, r5, r6, r7]: [std::arch::x86_64::__m256; SQUARE] = pulp::cast(square);
    let a0 = avx._mm256_unpacklo_ps(r0, r1);
    let a1 = avx._mm256_unpackhi_ps(r0, r1);
    let a2 = avx._mm256_unpacklo_ps(r2, r3);
    let a3 = avx._mm256_unpackhi_ps(r2, r3);
    let a4 = avx._mm256_unpacklo_ps(r4, r5);
    let a5 = avx._mm256_unpackhi_ps(r4, r5);
    let a6 = avx._mm256_unpacklo_ps(r6, r7);
    let a7 = avx._mm256_unpackhi_ps(r6, r7);
    let b0 = avx._mm256_shuffle_ps::<LOW>(a0, a2);
    let b1 = avx._mm256_shuffle_ps::<HIGH>(a0, a2);
    let b2 = avx._mm256_shuffle_ps::<LOW>(a1, a3);
    let b3 = avx._mm256_shuffle_ps::<HIGH>(a1, a3);
    let b4 = avx._mm256_shuffle_ps::<LOW>(a4, a6);
    let b5 = avx._mm256_shuffle_ps::<HIGH>(a4, a6);
    let b6 = avx._mm256_shuffle_ps::<LOW>(a5, a7);
    let b7 = avx._mm256_shuffle_ps::<HIGH>(a5, a7);
    pulp::cast([
        avx._mm256_permute2f128_ps::<FIRST>(b0, b4),
        avx._mm256_permute2f128_ps::<FIRST>(b1, b5),
        avx._mm256_permute2f128_ps::<FIRST>(b2, b6),
        avx._mm256_permute2f128_ps::<FIRST>(b3, b7),
        avx._mm256_permute2f128_ps::<SECOND>(b0, b4),
        avx._mm256_permute2f128_ps::<SECOND>(b1, b5),
        avx._mm256_permute2f128_ps::<SECOND>(b2, b6),
        avx._mm256_permute2f128_ps::<SECOND>(b3, b7),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::kernel::level;

    #[test]
    fn every_number_finds_its_place_on_every_instruction_set() {
        for (rows, columns) in [(1, 1), (8, 8), (7, 9), (19, 16), (24, 13)] {
            let (from_stride, to_stride) = (rows + 3, columns + 1);
            let from: Vec<f32> = (0..from_stride * columns).map(|i| i as f32).collect();
            for level in level::all() {
                let mut to = vec![-1.0; to_stride * rows];
                vectorised_for(
                    level,
                    #[inline(always)]
                    || {
                        let from = Strided { values: &from[..], stride: from_stride };
                        let to = Strided { values: &mut to[..], stride: to_stride };
                        transpose(level, from, to, (rows, columns));
                    },
                );
                for (r, row) in to.chunks(to_stride).enumerate() {
                    for (c, value) in row.iter().enumerate() {
                        let place = if c < columns { from[c * from_stride + r] } else { -1.0 };
                        assert_eq!(*value, place, "({r}, {c}) of ({rows}, {columns})");
                    }
                }
            }
        }
    }
}
