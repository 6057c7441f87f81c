//! Loops over plain slices at the processor's widest vectors, and vectors built in parallel.
//!
//! A loop is written once over slices of equal, known length; the compiler vectorises it for each
//! instruction set, and the widest one that this processor has is chosen at run time.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use super::kernel;
use super::scratch::filled;

/// Values per block: 16 KiB stay in the first-level cache.
pub(super) const BLOCK: usize = 4096;

/// Values per piece of a block, where constants of the channels have to stay in the cache, too.
pub(super) const PIECE: usize = 1024;

/// Runs `f` as compiled for the widest vectors of this processor: AVX-512, AVX2 with FMA, NEON, or
/// none.
///
/// `f` must be a closure that is `#[inline(always)]`, and so must be what it calls in a loop: write
/// `for`, not `for_each`, whose closure may be left outside, where a `mul_add` is a hundred times
/// slower. And `move`, or numbers in arrays of a constant length: what a closure only refers to may
/// change with every value that is written, so that nothing is vectorised
/// (`benches/scalar_loops.py` finds such loops).
#[inline(always)]
pub fn vectorised<R>(f: impl FnMut() -> R) -> R {
    vectorised_for(kernel::best(), f)
}

/// [`vectorised`] for the instruction set `level`.
#[inline(always)]
pub(crate) fn vectorised_for<R>(level: Arch, f: impl FnMut() -> R) -> R {
    level.dispatch(Loop(f))
}

/// Calls the closure by reference: the shim that calls one by value may stay outside the
/// instruction set.
struct Loop<F>(F);

impl<R, F: FnMut() -> R> WithSimd for Loop<F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) -> R {
        (self.0)()
    }
}

/// Asks for the value `ahead` of the first one, whether there is any, to be brought into the cache;
/// only on x86-64.
#[inline(always)]
#[expect(unsafe_code, reason = "an instruction that reads nothing and never fails")]
pub(super) fn fetch<T>(values: &[T], ahead: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it, and any address may be asked for.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(values.as_ptr().wrapping_add(ahead).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (values, ahead);
}

/// `n` values, block after block from `fill(start, block)`, in parallel. A block comes zeroed, and
/// is finished in the first-level cache.
pub(crate) fn build<T: Copy + Default + Send>(
    n: usize,
    fill: impl Fn(usize, &mut [T]) + Sync,
) -> Vec<T> {
    filled(n, BLOCK, fill)
}

/// [`build`] in whole rows of `width` values: calls `fill(start, rows)`, with `start` the position of
/// the first row.
pub(super) fn build_rows(
    n: usize,
    width: usize,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) -> Vec<f32> {
    filled(n, rows_of(width), fill)
}

/// Values of a block of whole rows.
fn rows_of(width: usize) -> usize {
    width * (BLOCK / width.max(1)).max(1)
}

/// Calls `change(start, rows)` for blocks of whole rows of `values`, in parallel.
pub(super) fn change_rows(
    values: &mut [f32],
    width: usize,
    change: impl Fn(usize, &mut [f32]) + Sync,
) {
    let block = rows_of(width);
    let blocks = values.par_chunks_mut(block.max(1)).enumerate();
    blocks.for_each(|(index, rows)| change(index * block, rows));
}

/// Calls `change(start, block)` for the blocks of `values`, in parallel.
pub(super) fn change_blocks<T: Send>(values: &mut [T], change: impl Fn(usize, &mut [T]) + Sync) {
    let blocks = values.par_chunks_mut(BLOCK).enumerate();
    blocks.for_each(|(index, block)| change(index * BLOCK, block));
}

/// Calls `change(start, piece)` for the pieces of a block that begins at `start`.
pub(super) fn for_each_piece<T>(start: usize, block: &mut [T], change: impl Fn(usize, &mut [T])) {
    for (index, piece) in block.chunks_mut(PIECE).enumerate() {
        change(start + index * PIECE, piece);
    }
}

/// One number per channel, repeated so that every piece of a row-major (rows, channels) array finds
/// those of its values side by side.
pub(super) struct PerChannel {
    channels: usize,
    repeated: Vec<f32>,
}

impl PerChannel {
    /// Repeats `values`.
    pub(super) fn new(values: impl ExactSizeIterator<Item = f32> + Clone) -> Self {
        let channels = values.len();
        Self { channels, repeated: values.cycle().take(channels + PIECE).collect() }
    }

    /// Numbers of the `n` values, at most a piece, from position `start` of the array.
    pub(super) fn at(&self, start: usize, n: usize) -> &[f32] {
        &self.repeated[start % self.channels..][..n]
    }
}

/// Sums that are kept side by side, so that the compiler may add whole vectors.
const SUMS: usize = 32;

/// Values added in f32, before f64 takes over.
const F32_SUM: usize = 1 << 12;

/// Sum of `f` over the values. `f` must be `#[inline(always)]`.
#[inline(always)]
pub(super) fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f64 {
    let mut total = 0.0;
    for x in x.chunks(F32_SUM) {
        let (groups, rest) = x.as_chunks::<SUMS>();
        let mut sums = [0f32; SUMS];
        for group in groups {
            for (sum, x) in sums.iter_mut().zip(group) {
                *sum += f(*x);
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += f(*x);
        }
        total += f64::from(folded(sums));
    }
    total
}

/// Sum of `f` over the pairs of two slices. `f` must be `#[inline(always)]`.
#[inline(always)]
pub(super) fn sum_of_pairs(x: &[f32], y: &[f32], f: impl Fn(f32, f32) -> f32) -> f64 {
    let mut total = 0.0;
    for (x, y) in x.chunks(F32_SUM).zip(y.chunks(F32_SUM)) {
        let ((x, x_rest), (y, y_rest)) = (x.as_chunks::<SUMS>(), y.as_chunks::<SUMS>());
        let mut sums = [0f32; SUMS];
        for (x, y) in x.iter().zip(y) {
            for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
                *sum += f(*x, *y);
            }
        }
        for ((sum, x), y) in sums.iter_mut().zip(x_rest).zip(y_rest) {
            *sum += f(*x, *y);
        }
        total += f64::from(folded(sums));
    }
    total
}

/// The largest value, minus infinity if there is none; NaN is passed over.
#[inline(always)]
pub(super) fn maximum(x: &[f32]) -> f32 {
    let (groups, rest) = x.as_chunks::<SUMS>();
    let mut best = [f32::NEG_INFINITY; SUMS];
    for group in groups {
        for (best, x) in best.iter_mut().zip(group) {
            *best = if *x > *best { *x } else { *best };
        }
    }
    best.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

/// Adds halves to halves.
#[inline(always)]
fn folded(mut sums: [f32; SUMS]) -> f32 {
    let mut n = SUMS;
    while n > 1 {
        n /= 2;
        let (low, high) = sums.split_at_mut(n);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_position_is_filled_whatever_the_length() {
        for n in [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 7] {
            let values = build(n, |start, block| {
                block.iter_mut().enumerate().for_each(|(i, value)| *value = (start + i) as f32);
            });
            assert!(values.iter().enumerate().all(|(i, &value)| value == i as f32));
            assert_eq!(values.len(), n);
        }
    }

    #[test]
    fn rows_are_whole_whatever_their_width() {
        for (rows, width) in [(0, 3), (1, 1), (33, 384), (7, 1000), (3, 5000), (4097, 1), (9, 512)]
        {
            let values = build_rows(rows * width, width, |start, block| {
                assert_eq!((start % width, block.len() % width), (0, 0));
                block.iter_mut().enumerate().for_each(|(i, value)| *value = (start + i) as f32);
            });
            assert!(values.iter().enumerate().all(|(i, &value)| value == i as f32));
            assert_eq!(values.len(), rows * width);
        }
    }

    #[test]
    fn sums_and_maxima_reach_every_value() {
        for n in [0, 1, 31, 32, 33, 10_000] {
            let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let exact: f64 = (0..n).map(f64::from).sum();
            assert!((sum(&x, |x| x) - exact).abs() <= 1e-6 * exact);
            assert!((sum_of_pairs(&x, &x, |x, y| x + y) - 2.0 * exact).abs() <= 2e-6 * exact);
            assert_eq!(maximum(&x), x.last().copied().unwrap_or(f32::NEG_INFINITY));
        }
    }

    #[test]
    fn channels_are_found_at_every_position() {
        let channels = PerChannel::new((0..7).map(|i| i as f32));
        for start in [0, 1, 6, 7, 3 * PIECE] {
            let expected: Vec<f32> = (0..PIECE).map(|i| ((start + i) % 7) as f32).collect();
            assert_eq!(channels.at(start, PIECE), expected);
        }
    }
}
