//! AVX-512's instructions for bf16: rounding, and sums of products of pairs.
#![expect(unsafe_code, reason = "instructions that not every processor has")]

use std::arch::x86_64::{
    __m512bh, __m512i, __mmask16, _mm256_maskz_loadu_epi16, _mm512_castsi256_si512,
    _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_inserti64x4, _mm512_loadu_ps, _mm512_loadu_si512,
    _mm512_maskz_loadu_ps, _mm512_permutexvar_epi16, _mm512_set1_epi32, _mm512_setzero_ps,
    _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_storeu_ps, _mm512_storeu_si512,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

use candle_core::DType;

use super::{DEPTH, LINES, PAIRS, Tile};
use crate::ops::element::Element;
use crate::ops::simd::fetch;

/// Numbers of a line between those that are packed and those that are fetched into the cache: two
/// tiles.
const AHEAD: usize = 2 * DEPTH;
/// Rows of A whose sums stay in registers together.
const ROWS: usize = 8;

/// True if this processor has these instructions.
pub(super) fn is_available() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bf16")
}

/// A tile of `lines` lines, of which `line(i)` are `depth` neighbouring numbers; zeros beyond. In
/// [`Order::Lines`](super::Order), or `turned`.
///
/// # Safety
///
/// [`is_available`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn pack_lines<'a, E: Element>(
    tile: &mut Tile,
    [lines, depth]: [usize; 2],
    turned: bool,
    line: impl Fn(usize) -> &'a [E],
) {
    let mut values = [_mm512_setzero_si512(); LINES];
    for (i, value) in values.iter_mut().enumerate().take(lines) {
        let from = &line(i)[..depth];
        fetch(from, AHEAD);
        fetch(from, AHEAD + LINES);
        let (low, high) = from.split_at(depth.min(LINES));
        *value = joined(low, high);
    }
    store(tile, &values, turned);
}

/// [`pack_lines`] of lines that lie across: `across(k)` are number `k` of each line. In
/// [`Order::Pairs`](super::Order), or `turned`.
///
/// # Safety
///
/// [`is_available`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn pack_across<'a, E: Element>(
    tile: &mut Tile,
    [lines, depth]: [usize; 2],
    turned: bool,
    across: impl Fn(usize) -> &'a [E],
) {
    let numbers = |k: usize| -> &'a [E] {
        if k >= depth {
            return &[];
        }
        let from = &across(k)[..lines];
        fetch(from, 2 * LINES);
        from
    };
    let mut values = [_mm512_setzero_si512(); PAIRS];
    for (pair, value) in values.iter_mut().enumerate().take(depth.div_ceil(2)) {
        let halves = joined(numbers(2 * pair), numbers(2 * pair + 1));
        *value = _mm512_permutexvar_epi16(interleaving(), halves);
    }
    store(tile, &values, turned);
}

/// At most 16 numbers as bf16 in the lower half, others in the upper half, and zeros.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
fn joined<E: Element>(low: &[E], high: &[E]) -> __m512i {
    let ([low, high], [low_mask, high_mask]) =
        ([low, high].map(<[E]>::as_ptr), [low, high].map(|numbers| mask(numbers.len())));
    // SAFETY: the masks stand for the numbers that are there, which are f32 or bf16.
    unsafe {
        if E::DTYPE == DType::F32 {
            let low = _mm512_maskz_loadu_ps(low_mask, low.cast());
            return bits(_mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high_mask, high.cast()), low));
        }
        let low = _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(low_mask, low.cast()));
        _mm512_inserti64x4::<1>(low, _mm256_maskz_loadu_epi16(high_mask, high.cast()))
    }
}

/// The first `n` of 16 lanes.
fn mask(n: usize) -> __mmask16 {
    if n >= LINES { __mmask16::MAX } else { (1 << n) - 1 }
}

/// Indices that interleave the numbers of the lower half with those of the upper one.
#[target_feature(enable = "avx512f")]
fn interleaving() -> __m512i {
    const PLACES: [u16; 32] = {
        let mut places = [0; 32];
        let mut i = 0;
        while i < 16 {
            places[2 * i as usize] = i;
            places[2 * i as usize + 1] = 16 + i;
            i += 1;
        }
        places
    };
    // SAFETY: 64 bytes of a constant.
    unsafe { _mm512_loadu_si512(PLACES.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn bits(pairs: __m512bh) -> __m512i {
    // SAFETY: both are 64 bytes, of any value.
    unsafe { std::mem::transmute(pairs) }
}

#[target_feature(enable = "avx512f")]
fn pairs(bits: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes, of any value.
    unsafe { std::mem::transmute(bits) }
}

/// Line `index` of a tile.
#[target_feature(enable = "avx512f")]
fn line(tile: &Tile, index: usize) -> __m512i {
    // SAFETY: 64 bytes of the tile.
    unsafe { _mm512_loadu_si512(tile.as_chunks::<PAIRS>().0[index].as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn store(tile: &mut Tile, values: &[__m512i; LINES], turned: bool) {
    let values = if turned { transposed(values) } else { *values };
    for (to, value) in tile.as_chunks_mut::<PAIRS>().0.iter_mut().zip(values) {
        // SAFETY: 64 bytes of the tile.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), value) };
    }
}

/// Pairs, then fours, then eights, then halves of 16 x 16 words.
#[target_feature(enable = "avx512f")]
fn transposed(r: &[__m512i; 16]) -> [__m512i; 16] {
    let mut pairs = *r;
    for i in 0..8 {
        pairs[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        pairs[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    let mut fours = *r;
    for i in 0..4 {
        let [a, b, c, d] = [pairs[4 * i], pairs[4 * i + 1], pairs[4 * i + 2], pairs[4 * i + 3]];
        fours[4 * i] = _mm512_unpacklo_epi64(a, c);
        fours[4 * i + 1] = _mm512_unpackhi_epi64(a, c);
        fours[4 * i + 2] = _mm512_unpacklo_epi64(b, d);
        fours[4 * i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    // `fours[4 i + j]` holds, of rows 4 i.., columns j, 4 + j, 8 + j and 12 + j.
    let mut out = *r;
    for j in 0..4 {
        let [a, b, c, d] = [fours[j], fours[4 + j], fours[8 + j], fours[12 + j]];
        let low = _mm512_shuffle_i32x4::<0x88>(a, b);
        let high = _mm512_shuffle_i32x4::<0x88>(c, d);
        out[j] = _mm512_shuffle_i32x4::<0x88>(low, high);
        out[8 + j] = _mm512_shuffle_i32x4::<0xDD>(low, high);
        let low = _mm512_shuffle_i32x4::<0xDD>(a, b);
        let high = _mm512_shuffle_i32x4::<0xDD>(c, d);
        out[4 + j] = _mm512_shuffle_i32x4::<0x88>(low, high);
        out[12 + j] = _mm512_shuffle_i32x4::<0xDD>(low, high);
    }
    out
}

/// `amx::Tiles::multiply` for the first `rows` rows; rows up to the next multiple of eight are
/// written to as well. `PAIRS_FIRST`: tiles of A hold the first pairs of all lines, then the second
/// ones, else all pairs of the first line, then those of the second.
///
/// # Safety
///
/// [`is_available`], and `c` may be written to there.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn multiply<const PAIRS_FIRST: bool>(
    a: &[[Tile; 2]],
    b: &[[Tile; 2]],
    (c, stride): (*mut f32, usize),
    rows: usize,
    add: bool,
) {
    let (line_step, pair_step) = if PAIRS_FIRST { (1, LINES) } else { (PAIRS, 1) };
    for first in (0..rows).step_by(ROWS) {
        let half = first / LINES;
        let start = first % LINES * line_step;
        let place =
            |i: usize, v: usize| c.wrapping_byte_add((first + i) * stride).wrapping_add(16 * v);
        let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
        if add {
            for (i, sums) in sums.iter_mut().enumerate() {
                for (v, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: the caller's.
                    *sum = unsafe { _mm512_loadu_ps(place(i, v)) };
                }
            }
        }
        for (a, b) in a.iter().zip(b) {
            let a = &a[half][start..][..=(ROWS - 1) * line_step + (PAIRS - 1) * pair_step];
            for pair in 0..PAIRS {
                let b0 = pairs(line(&b[0], pair));
                let b1 = pairs(line(&b[1], pair));
                for (i, [sum0, sum1]) in sums.iter_mut().enumerate() {
                    let a = a[i * line_step + pair * pair_step].cast_signed();
                    let a = pairs(_mm512_set1_epi32(a));
                    *sum0 = _mm512_dpbf16_ps(*sum0, a, b0);
                    *sum1 = _mm512_dpbf16_ps(*sum1, a, b1);
                }
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            for (v, sum) in sums.iter().enumerate() {
                // SAFETY: the caller's.
                unsafe { _mm512_storeu_ps(place(i, v), *sum) };
            }
        }
    }
}
