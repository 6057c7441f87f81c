//! A block of output pixels as a matrix: for few channels, whose taps are too short for products of
//! their own.

use super::geometry::{Geometry, Pixel};
use crate::ops::element::Element;
use crate::ops::scratch::Scratch;

/// Input channels from which on a tap is long enough.
const MIN_CHANNELS: usize = 16;

/// True if blocks of pixels are copied together.
pub(super) fn is_gathered(g: &Geometry) -> bool {
    g.groups == 1 && g.ci < MIN_CHANNELS && g.taps() > 1 && g.dilation[1] == 1
}

/// (pixels, kh kw ci): what each output pixel reads, as f32; zeros outside the image.
pub(super) fn gather<E: Element>(g: &Geometry, x: &[E], pixels: &[Pixel]) -> Scratch {
    let width = g.kw * g.ci;
    let mut matrix = Scratch::new(pixels.len() * g.kh * width);
    for (&pixel, rows) in pixels.iter().zip(matrix.chunks_exact_mut(g.kh * width)) {
        // The taps that lie inside the image are neighbours in memory, row by row.
        let left = pixel.x * g.stride[1];
        let skipped = g.padding[1].saturating_sub(left).min(g.kw);
        let inner_taps = (g.w + g.padding[1]).saturating_sub(left).min(g.kw).max(skipped) - skipped;
        for (ky, row) in rows.chunks_exact_mut(width).enumerate() {
            let inside = (inner_taps > 0).then(|| g.input_pixel(pixel, ky, skipped)).flatten();
            let Some(first) = inside else {
                row.fill(0.0);
                continue;
            };
            let from = &x[first * g.ci..][..inner_taps * g.ci];
            if inner_taps == g.kw {
                copy(row, from);
                continue;
            }
            let (before, rest) = row.split_at_mut(skipped * g.ci);
            let (values, after) = rest.split_at_mut(inner_taps * g.ci);
            before.fill(0.0);
            widen(values, from);
            after.fill(0.0);
        }
    }
    matrix
}

/// Copies the row of a kernel; of the usual sizes over three channels, without a call.
#[inline(always)]
fn copy<E: Element>(to: &mut [f32], from: &[E]) {
    match from.len() {
        9 => copy_array::<E, 9>(to, from),
        15 => copy_array::<E, 15>(to, from),
        21 => copy_array::<E, 21>(to, from),
        _ => widen(to, from),
    }
}

#[inline(always)]
fn copy_array<E: Element, const N: usize>(to: &mut [f32], from: &[E]) {
    to.as_chunks_mut::<N>().0[0] = from.as_chunks::<N>().0[0].map(E::wide);
}

#[inline(always)]
fn widen<E: Element>(to: &mut [f32], from: &[E]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.wide();
    }
}

#[cfg(test)]
mod tests {
    use super::super::geometry::Sliding;
    use super::*;

    #[test]
    fn a_row_holds_each_tap_of_its_pixel() {
        for (w, kw, stride, padding) in [(5, 3, 1, 1), (2, 7, 2, 3), (9, 4, 3, 5), (1, 1, 1, 2)] {
            let sliding =
                Sliding { stride: [2, stride], padding: [1, padding], dilation: [1, 1], groups: 1 };
            let g = Geometry::new((2, 4, w, 2), (1, 2, 3, kw), sliding).unwrap();
            let x: Vec<f32> = (1..=2 * 4 * w * 2).map(|i| i as f32).collect();
            let pixels: Vec<Pixel> = g.output_pixels(0..g.pixels()).collect();
            let matrix = gather(&g, &x, &pixels);
            let mut expected = Vec::new();
            for &pixel in &pixels {
                for (ky, kx) in (0..3).flat_map(|ky| (0..kw).map(move |kx| (ky, kx))) {
                    match g.input_pixel(pixel, ky, kx) {
                        Some(input) => expected.extend(&x[input * 2..input * 2 + 2]),
                        None => expected.extend([0.0; 2]),
                    }
                }
            }
            assert_eq!(*matrix, expected);
        }
    }
}
