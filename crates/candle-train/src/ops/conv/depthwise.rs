//! Depthwise convolution: one filter per channel, vectors along the channels.

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::geometry::{Geometry, Pixel};
use crate::ops::accumulate::sum_of_parts;
use crate::ops::kernel::{balanced, best, run};
use crate::ops::layout::transposed;
use crate::ops::scratch::filled;

/// Multiplications of a block of pixels.
const BLOCK: usize = 1 << 17;
/// Partial sums of the weight gradient at most, and pixels of each at least.
const PARTS: usize = 16;
const PART_PIXELS: usize = 32;

/// True if each channel has a filter of its own, and makes one output channel.
pub(super) fn applies(g: &Geometry) -> bool {
    g.groups > 1 && g.groups == g.ci && g.groups == g.co
}

/// y (n, oh, ow, c).
pub(super) fn forward(g: &Geometry, x: &[f32], weight: &[f32]) -> Vec<f32> {
    let read = |pixel, ky, kx| g.input_pixel(Pixel::new(pixel, g.oh, g.ow), ky, kx);
    apply(g, x, weight, g.pixels(), read)
}

/// dx (n, h, w, c).
pub(super) fn backward_data(g: &Geometry, dy: &[f32], weight: &[f32]) -> Vec<f32> {
    let read = |pixel, ky, kx| g.output_pixel(Pixel::new(pixel, g.h, g.w), ky, kx);
    apply(g, dy, weight, g.n * g.h * g.w, read)
}

/// out (pixels, c) = sum over taps of the values that `read` finds and the weights.
fn apply(
    g: &Geometry,
    values: &[f32],
    weight: &[f32],
    pixels: usize,
    read: impl Fn(usize, usize, usize) -> Option<usize> + Sync,
) -> Vec<f32> {
    let taps = transposed(weight, g.ci, g.taps());
    let block = balanced(pixels, BLOCK.div_ceil(g.taps() * g.ci), 1);
    filled(pixels * g.ci, block * g.ci, |start, out| {
        let first = start / g.ci;
        run(best(), Sums { g, values, taps: &taps, first, out, read: &read });
    })
}

/// dw (c, 1, kh, kw): a fixed number of partial sums over pixels, added in a fixed order.
pub(super) fn backward_weight(g: &Geometry, x: &[f32], dy: &[f32]) -> Vec<f32> {
    let parts = PARTS.min(g.pixels().div_ceil(PART_PIXELS));
    let part_sum = |part: usize| {
        let mut sums = vec![0.0; g.taps() * g.ci];
        let pixels = g.pixels() * part / parts..g.pixels() * (part + 1) / parts;
        run(best(), Products { g, x, dy, pixels, sums: &mut sums });
        sums
    };
    let parts: Vec<Vec<f32>> = (0..parts).into_par_iter().map(part_sum).collect();
    transposed(&sum_of_parts(&parts, g.taps() * g.ci), g.taps(), g.ci)
}

/// The pixels of a block, from `first` on.
struct Sums<'a, R> {
    g: &'a Geometry,
    values: &'a [f32],
    /// (taps, c).
    taps: &'a [f32],
    first: usize,
    out: &'a mut [f32],
    read: &'a R,
}

impl<R: Fn(usize, usize, usize) -> Option<usize>> WithSimd for Sums<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let c = self.g.ci;
        let mut operands: Vec<[&[f32]; 2]> = Vec::with_capacity(self.g.taps());
        for (i, out) in self.out.chunks_exact_mut(c).enumerate() {
            operands.clear();
            for (tap, weights) in self.taps.chunks_exact(c).enumerate() {
                if let Some(pixel) = (self.read)(self.first + i, tap / self.g.kw, tap % self.g.kw) {
                    operands.push([&self.values[pixel * c..][..c], weights]);
                }
            }
            sum_products(simd, &operands, out);
        }
    }
}

/// out = sum of the products of the operands, channel by channel.
#[inline(always)]
fn sum_products<S: Simd>(simd: S, operands: &[[&[f32]; 2]], out: &mut [f32]) {
    let (whole, rest) = S::as_mut_simd_f32s(out);
    let first = whole.len() * S::F32_LANES;
    for (vector, out) in whole.iter_mut().enumerate() {
        let mut sum = simd.splat_f32s(0.0);
        for [a, b] in operands {
            let a = S::as_simd_f32s(a).0[vector];
            let b = S::as_simd_f32s(b).0[vector];
            sum = simd.mul_add_e_f32s(a, b, sum);
        }
        *out = sum;
    }
    if !rest.is_empty() {
        let mut sum = simd.splat_f32s(0.0);
        for [a, b] in operands {
            let a = simd.partial_load_f32s(&a[first..]);
            sum = simd.mul_add_e_f32s(a, simd.partial_load_f32s(&b[first..]), sum);
        }
        simd.partial_store_f32s(rest, sum);
    }
}

/// Gradients of the taps over some output pixels.
struct Products<'a> {
    g: &'a Geometry,
    x: &'a [f32],
    dy: &'a [f32],
    pixels: Range<usize>,
    /// (taps, c).
    sums: &'a mut [f32],
}

impl WithSimd for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let g = self.g;
        let c = self.g.ci;
        for number in self.pixels {
            let pixel = Pixel::new(number, g.oh, g.ow);
            let dy = &self.dy[number * c..][..c];
            for (tap, sums) in self.sums.chunks_exact_mut(c).enumerate() {
                if let Some(input) = g.input_pixel(pixel, tap / g.kw, tap % g.kw) {
                    add_products(simd, &self.x[input * c..][..c], dy, sums);
                }
            }
        }
    }
}

/// sums += a b, channel by channel.
#[inline(always)]
fn add_products<S: Simd>(simd: S, a: &[f32], b: &[f32], sums: &mut [f32]) {
    let ((a, a_rest), (b, b_rest)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    let (sums, sums_rest) = S::as_mut_simd_f32s(sums);
    for ((sum, &a), &b) in sums.iter_mut().zip(a).zip(b) {
        *sum = simd.mul_add_e_f32s(a, b, *sum);
    }
    if !sums_rest.is_empty() {
        let a = simd.partial_load_f32s(a_rest);
        let b = simd.partial_load_f32s(b_rest);
        let sum = simd.mul_add_e_f32s(a, b, simd.partial_load_f32s(sums_rest));
        simd.partial_store_f32s(sums_rest, sum);
    }
}
