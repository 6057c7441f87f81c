//! Gradient of the weight: for each tap, the transposed input times the gradient of the output.
//!
//! A small weight is summed over parts of the pixels, a fixed number of them, added in a fixed
//! order; the rows of a large one, or of few pixels, are spread over threads, each of which sees
//! all pixels.

use std::ops::Range;

use rayon::prelude::*;

use super::direct::input_slices;
use super::gathered::{gather, is_gathered};
use super::geometry::{Geometry, Pixel};
use super::weight_layout::from_hwio;
use crate::ops::accumulate::sum_of_parts;
use crate::ops::kernel::{Columns, Factor, Format, Output, Panels, Source, Sums, Write, balanced};
use crate::ops::scratch::{Scratch, zeros};

/// Output pixels per product at most, and at least in a part.
const PIXELS: usize = 256;
const MIN_PIXELS: usize = 64;
/// Pixels whose gradients are too few for a partial sum of each thread.
const FEW_PIXELS: usize = 4 * PIXELS;
/// Partial sums of a small weight.
const PARTS: usize = 8;
/// Elements above which a weight is large.
const LARGE_WEIGHT: usize = 1 << 17;
/// Rows of a large weight that a thread sums at most and at least: whole register tiles.
const ROWS: usize = 48;
const MIN_ROWS: usize = 12;

/// dw in PyTorch's order.
pub(super) fn backward_weight<X: Factor, D: Factor>(
    g: &Geometry,
    x: &[X],
    dy: &[D],
    format: Format,
) -> Vec<f32> {
    let work = Work { g, x, dy, format, zeros: vec![X::default(); g.group_inputs()] };
    let large = g.weight_len() > LARGE_WEIGHT;
    let few = g.pixels() <= FEW_PIXELS;
    let is_spread = (large || few) && !is_gathered(g);
    from_hwio(g, &if is_spread { work.spread() } else { work.parts() })
}

struct Work<'a, X, D> {
    g: &'a Geometry,
    x: &'a [X],
    dy: &'a [D],
    format: Format,
    zeros: Vec<X>,
}

impl<X: Factor, D: Factor> Work<'_, X, D> {
    /// Blocks of at most [`PIXELS`] pixels, as many for each of `parts`.
    fn blocks(&self, parts: usize) -> Vec<Range<usize>> {
        let pixels = self.g.pixels();
        let blocks = pixels.div_ceil(PIXELS).next_multiple_of(parts);
        (0..blocks).map(|i| pixels * i / blocks..pixels * (i + 1) / blocks).collect()
    }

    /// Gradient (groups, taps, ci, co): blocks of pixels in parallel, each part with a sum of its own.
    fn parts(&self) -> Vec<f32> {
        let parts = self.g.pixels().div_ceil(MIN_PIXELS).clamp(1, PARTS);
        let blocks = self.blocks(parts);
        let part_sum = |blocks: &[Range<usize>]| {
            let mut sum = Scratch::new(self.g.weight_len());
            sum.fill(0.0);
            for pixels in blocks {
                self.add_block(pixels.clone(), &mut sum);
            }
            sum
        };
        let parts = blocks.par_chunks((blocks.len() / parts).max(1));
        let sums: Vec<Scratch> = parts.map(part_sum).collect();
        sum_of_parts(&sums, self.g.weight_len())
    }

    fn add_block(&self, pixels: Range<usize>, sum: &mut [f32]) {
        let g = self.g;
        let inputs = g.group_inputs();
        let outputs = g.group_outputs();
        let taps = g.taps();
        let places: Vec<Pixel> = g.output_pixels(pixels.clone()).collect();
        for (group, sum) in sum.chunks_exact_mut(taps * inputs * outputs).enumerate() {
            let dy = self.panels(pixels.clone(), group);
            if is_gathered(g) {
                let matrix = gather(g, self.x, &places);
                let slices: Vec<&[f32]> = matrix.chunks_exact(taps * inputs).collect();
                add_product(&slices, taps * inputs, &dy, sum);
            } else {
                let slices = input_slices(g, self.x, &places, group, &self.zeros);
                for (tap, sum) in sum.chunks_exact_mut(inputs * outputs).enumerate() {
                    let slices: Vec<&[X]> =
                        slices.iter().skip(tap).step_by(taps).copied().collect();
                    add_product(&slices, inputs, &dy, sum);
                }
            }
        }
    }

    /// The gradients of these pixels, (pixels, co of the group).
    fn panels(&self, pixels: Range<usize>, group: usize) -> Panels {
        let values = &self.dy[pixels.start * self.g.co + group * self.g.group_outputs()..];
        let source = Source { values, tap: 0, row: self.g.co, column: 1 };
        Panels::pack(self.format, source, &[0], pixels.len(), self.g.group_outputs())
    }

    fn spread(&self) -> Vec<f32> {
        let g = self.g;
        let inputs = g.group_inputs();
        let outputs = g.group_outputs();
        let mut total = zeros(g.weight_len());
        let per_group = g.taps() * inputs * outputs;
        for (group, total) in total.chunks_exact_mut(per_group).enumerate() {
            let blocks = self.blocks(1);
            let rows = balanced(inputs, ROWS, MIN_ROWS).next_multiple_of(MIN_ROWS);
            let dy: Vec<Panels> =
                blocks.par_iter().map(|pixels| self.panels(pixels.clone(), group)).collect();
            let taps = total.chunks_exact_mut(inputs * outputs).enumerate();
            let tasks: Vec<(usize, usize, &mut [f32])> = taps
                .flat_map(|(tap, sum)| {
                    let pieces = sum.chunks_mut(rows * outputs).enumerate();
                    pieces.map(move |(piece, sum)| (tap, piece * rows, sum))
                })
                .collect();
            tasks.into_par_iter().for_each(|(tap, first, sum)| {
                let rows = sum.len() / outputs;
                let channels = group * inputs + first..group * inputs + first + rows;
                for (pixels, dy) in blocks.iter().zip(&dy) {
                    let slices = self.tap_slices(pixels.clone(), tap, channels.clone());
                    add_product(&slices, rows, dy, sum);
                }
            });
        }
        total
    }

    /// These channels of the values that one tap of these pixels reads.
    fn tap_slices(&self, pixels: Range<usize>, tap: usize, channels: Range<usize>) -> Vec<&[X]> {
        let g = self.g;
        let slice = |pixel| match g.input_pixel(pixel, tap / g.kw, tap % g.kw) {
            Some(input) => &self.x[input * g.ci + channels.start..input * g.ci + channels.end],
            None => &self.zeros[..channels.len()],
        };
        g.output_pixels(pixels).map(slice).collect()
    }
}

/// sum (rows, co) += the transpose of the slices times dy.
fn add_product<F: Factor>(slices: &[&[F]], rows: usize, dy: &Panels, sum: &mut [f32]) {
    let starts: Vec<usize> = (0..sum.len()).step_by(sum.len() / rows).collect();
    let out = Output { values: sum, starts: &starts, write: Write::Add, sums: Sums::Long };
    F::multiply_columns(&mut Columns::new(slices, rows), dy, out);
}
