//! Columns combined, and rows.

use pulp::{Arch, Simd, WithSimd};

use crate::weights::Weights;

/// Bits behind the point of the weights of 8-bit values: with 8 of a value and two for sums below 0
/// and above the largest, 32.
const BITS: u32 = 32 - 8 - 2;
const HALF: i32 = 1 << (BITS - 1);
/// Values of a row that are combined at once.
const LANES: usize = 32;

/// Values of pixels.
pub(crate) trait Value: Copy + Default {
    /// The input that each of `to` outputs takes of `from` where nothing is combined; `None` beyond
    /// the last.
    fn nearest(from: usize, to: usize) -> Vec<Option<usize>>;

    /// Each of `rows` with its columns combined.
    fn combine_columns(rows: &[&[Self]], channels: usize, weights: &Weights, out: &mut [Self]);

    /// `rows` combined; the first of them is the first that counts.
    fn combine_rows(rows: &[&[Self]], weights: &Weights, out: &mut [Self]);
}

impl Value for u8 {
    /// Steps add up, as in `ImagingScaleAffine`.
    fn nearest(from: usize, to: usize) -> Vec<Option<usize>> {
        let step = from as f64 / to as f64;
        let places = std::iter::successors(Some(step * 0.5), |place| Some(place + step));
        places.take(to).map(|place| Some(place as usize).filter(|&place| place < from)).collect()
    }

    fn combine_columns(rows: &[&[Self]], channels: usize, weights: &Weights, out: &mut [Self]) {
        let fixed = fixed(weights);
        let mut rows = rows.iter().zip(out.chunks_exact_mut(weights.spans.len() * channels));
        let level = Arch::new();
        #[cfg(target_arch = "x86_64")]
        if channels == 3
            && let Some(simd) = colours::level(level)
        {
            let weights = colours::Fours::new(weights, &fixed);
            let mut padded = Vec::new();
            return vectorised(
                level,
                #[inline(always)]
                || {
                    for (from, to) in rows.by_ref() {
                        colours::columns(simd, from, &weights, to, &mut padded);
                    }
                },
            );
        }
        vectorised(
            level,
            #[inline(always)]
            || {
                for (from, to) in rows.by_ref() {
                    match channels {
                        1 => columns::<1>(from, weights, &fixed, to),
                        2 => columns::<2>(from, weights, &fixed, to),
                        3 => columns::<3>(from, weights, &fixed, to),
                        _ => columns::<4>(from, weights, &fixed, to),
                    }
                }
            },
        );
    }

    fn combine_rows(rows: &[&[Self]], weights: &Weights, out: &mut [Self]) {
        let fixed = fixed(weights);
        let (start, _) = weights.extent();
        let level = Arch::new();
        let outputs = out.chunks_exact_mut(out.len() / weights.spans.len()).zip(&weights.spans);
        for ((to, &(first, n)), weights) in outputs.zip(fixed.chunks_exact(weights.window)) {
            let rows = &rows[first - start..first - start + n];
            vectorised(
                level,
                #[inline(always)]
                || sum_of_rows(rows, &weights[..n], to),
            );
        }
    }
}

/// Runs `f`, a closure that is `#[inline(always)]`, as compiled for `level`.
#[inline(always)]
fn vectorised(level: Arch, f: impl FnMut()) {
    struct Loop<F>(F);
    impl<F: FnMut()> WithSimd for Loop<F> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(mut self, _: S) {
            (self.0)();
        }
    }
    level.dispatch(Loop(f));
}

/// The weights as whole numbers.
fn fixed(weights: &Weights) -> Vec<i32> {
    let fixed = |&weight: &f64| {
        let scaled = weight * f64::from(1 << BITS);
        (if weight < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
    };
    weights.values.iter().map(fixed).collect()
}

#[inline(always)]
fn clip(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// A row of pixels of `C` channels.
#[inline(always)]
fn columns<const C: usize>(from: &[u8], weights: &Weights, fixed: &[i32], to: &mut [u8]) {
    let pixels = from.as_chunks::<C>().0;
    let outputs = to.as_chunks_mut::<C>().0.iter_mut().zip(&weights.spans);
    for ((to, &(first, n)), weights) in outputs.zip(fixed.chunks_exact(weights.window)) {
        let mut sums = [HALF; C];
        for (weight, pixel) in weights.iter().zip(&pixels[first..first + n]) {
            for (sum, &value) in sums.iter_mut().zip(pixel) {
                *sum += weight * i32::from(value);
            }
        }
        *to = sums.map(clip);
    }
}

#[inline(always)]
fn sum_of_rows(rows: &[&[u8]], weights: &[i32], to: &mut [u8]) {
    let whole = to.len() / LANES * LANES;
    let (blocks, rest) = to.as_chunks_mut::<LANES>();
    for (block, to) in blocks.iter_mut().enumerate() {
        let mut sums = [HALF; LANES];
        for (weight, row) in weights.iter().zip(rows) {
            let Some(values) = row[block * LANES..].first_chunk::<LANES>() else { continue };
            for (sum, &value) in sums.iter_mut().zip(values) {
                *sum += weight * i32::from(value);
            }
        }
        for (to, sum) in to.iter_mut().zip(sums) {
            *to = clip(sum);
        }
    }
    for (at, to) in (whole..).zip(rest) {
        let terms = weights.iter().zip(rows).map(|(weight, row)| weight * i32::from(row[at]));
        *to = clip(terms.fold(HALF, |sum, term| sum + term));
    }
}

/// Columns of three channels, four pixels at once: the compiler does not find this by itself, and
/// takes five times as long.
///
/// Products of 16 bits are added in pairs, and a weight has more: its upper and its lower bits are
/// summed apart, and both sums together are exactly that of the whole weights.
#[cfg(target_arch = "x86_64")]
mod colours {
    use pulp::x86::V3;
    use pulp::{Arch, cast};

    use super::{BITS, HALF};
    use crate::weights::Weights;

    /// Lower bits of a weight.
    const LOW_BITS: u32 = 11;
    /// Bytes that are read at once, of which those of four pixels count.
    const READ: usize = 16;
    /// For both halves of a register, pixels 0 and 1 and pixels 2 and 3: their reds, greens and
    /// blues, side by side as 16 bits.
    const PAIRS: [i8; 32] = [
        0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, //
        6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1,
    ];

    pub(super) fn level(level: Arch) -> Option<V3> {
        match level {
            Arch::V4(simd) => Some(*simd),
            Arch::V3(simd) => Some(simd),
            _ => None,
        }
    }

    /// Weights of four pixels at a time, as they meet [`PAIRS`].
    pub(super) struct Fours {
        /// First byte of each output, and where its fours end.
        outputs: Vec<(usize, usize)>,
        /// Upper and lower bits.
        fours: Vec<[[i16; 16]; 2]>,
    }

    impl Fours {
        pub(super) fn new(weights: &Weights, fixed: &[i32]) -> Self {
            let mut outputs = Vec::new();
            let mut fours = Vec::new();
            for (&(first, n), fixed) in weights.spans.iter().zip(fixed.chunks_exact(weights.window))
            {
                for four in fixed[..n].chunks(4) {
                    let weight = |lane: usize| {
                        let pixel = lane / 8 * 2 + lane % 2;
                        four.get(pixel).copied().unwrap_or(0)
                    };
                    let low = |weight: i32| (weight & ((1 << LOW_BITS) - 1)) as i16;
                    let parts = [|w: i32| (w >> LOW_BITS) as i16, low];
                    fours.push(parts.map(|part| std::array::from_fn(|lane| part(weight(lane)))));
                }
                outputs.push((3 * first, fours.len()));
            }
            Self { outputs, fours }
        }
    }

    /// The row `from` in `padded`, so that no read ends behind it.
    #[inline(always)]
    pub(super) fn columns(
        simd: V3,
        from: &[u8],
        weights: &Fours,
        to: &mut [u8],
        padded: &mut Vec<u8>,
    ) {
        padded.clear();
        padded.extend_from_slice(from);
        padded.resize(from.len() + 4 * READ, 0);
        let avx = simd.avx;
        let avx2 = simd.avx2;
        let sse2 = simd.sse2;
        let pairs = cast(PAIRS);
        let half = avx._mm256_setr_epi32(HALF, HALF, HALF, HALF, 0, 0, 0, 0);
        let mut start = 0;
        for (to, &(first, end)) in to.as_chunks_mut::<3>().0.iter_mut().zip(&weights.outputs) {
            let mut upper = avx._mm256_setzero_si256();
            let mut lower = half;
            let mut at = first;
            for &[high, low] in &weights.fours[start..end] {
                let Some(&read) = padded[at..].first_chunk::<READ>() else { break };
                let four =
                    avx2._mm256_shuffle_epi8(avx2._mm256_broadcastsi128_si256(cast(read)), pairs);
                upper = avx2._mm256_add_epi32(upper, avx2._mm256_madd_epi16(four, cast(high)));
                lower = avx2._mm256_add_epi32(lower, avx2._mm256_madd_epi16(four, cast(low)));
                at += 12;
            }
            start = end;
            let upper = avx2._mm256_slli_epi32::<{ LOW_BITS as i32 }>(upper);
            let sums = avx2._mm256_add_epi32(upper, lower);
            let [first, second]: [std::arch::x86_64::__m128i; 2] = cast(sums);
            let sums = sse2._mm_srai_epi32::<{ BITS as i32 }>(sse2._mm_add_epi32(first, second));
            let words = sse2._mm_packs_epi32(sums, sums);
            let bytes = sse2._mm_cvtsi128_si32(sse2._mm_packus_epi16(words, words)).to_le_bytes();
            to.copy_from_slice(&bytes[..3]);
        }
    }
}

impl Value for u16 {
    /// As in `affine_transform`.
    fn nearest(from: usize, to: usize) -> Vec<Option<usize>> {
        let step = from as f64 / to as f64;
        let place = |output: usize| (step * (output as f64 + 0.5)) as usize;
        (0..to).map(|output| Some(place(output)).filter(|&place| place < from)).collect()
    }

    fn combine_columns(rows: &[&[Self]], channels: usize, weights: &Weights, out: &mut [Self]) {
        let length = weights.spans.len() * channels;
        for (from, to) in rows.iter().zip(out.chunks_exact_mut(length)) {
            for (output, to) in to.chunks_exact_mut(channels).enumerate() {
                let (first, n) = weights.spans[output];
                let weights = &weights.values[output * weights.window..][..n];
                for (channel, to) in to.iter_mut().enumerate() {
                    let values = from[first * channels + channel..].iter().step_by(channels);
                    *to = rounded(values.zip(weights));
                }
            }
        }
    }

    fn combine_rows(rows: &[&[Self]], weights: &Weights, out: &mut [Self]) {
        let (start, _) = weights.extent();
        let length = out.len() / weights.spans.len();
        for (output, to) in out.chunks_exact_mut(length).enumerate() {
            let (first, n) = weights.spans[output];
            let weights = &weights.values[output * weights.window..][..n];
            let rows = &rows[first - start..];
            for (at, to) in to.iter_mut().enumerate() {
                *to = rounded(rows.iter().map(|row| &row[at]).zip(weights));
            }
        }
    }
}

/// The nearest whole number of a sum of products.
fn rounded<'a>(terms: impl Iterator<Item = (&'a u16, &'a f64)>) -> u16 {
    let sum: f64 = terms.map(|(&value, weight)| f64::from(value) * weight).sum();
    (sum + 0.5).floor().clamp(0.0, f64::from(u16::MAX)) as u16
}
