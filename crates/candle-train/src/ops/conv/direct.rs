//! Convolution as products of row slices: a tap of an output pixel is a slice of the input, or of
//! zeros.
//!
//! The gradient of the input is the same product the other way round, made apart for each class of
//! input pixels that the same taps reach: with a stride of 2 there are four.

use super::gathered::{gather, is_gathered};
use super::geometry::{Geometry, Pixel};
use super::weight_layout::{by_tap, to_hwio};
use crate::Precision;
use crate::ops::kernel::{
    Epilogue, Factor, Format, Output, Panels, Rows, Source, Sums, Write, balanced, blocks_of_tiles,
    product,
};
use crate::ops::saved::Saved;
use crate::ops::scratch::{filled, lengths};

/// Pixels per block at most: their inputs and outputs stay in the second-level cache.
const PIXELS: usize = 192;
/// Pixels that are seen together: whole blocks, and whole blocks of rows of a norm.
pub(super) const SEEN_PIXELS: usize = 2 * PIXELS;
/// Runs of [`SEEN_PIXELS`] at least, so that no thread waits long for the last of another.
const SEEN_RUNS: usize = 16;

/// y (n, oh, ow, co); of a single group, `epilogue` sees its rows.
pub(super) fn forward(
    g: &Geometry,
    x: &[f32],
    weight: &[f32],
    format: Format,
    epilogue: impl Epilogue + Copy + Sync,
) -> Vec<f32> {
    let forward = Forward::new(g, x, weight, format);
    let block = blocks_of_tiles(format, g.pixels(), PIXELS);
    filled(g.pixels() * g.co, block * g.co, |start, y| forward.block(start / g.co, y, epilogue))
}

/// [`forward`] as `finish` leaves each run of [`SEEN_PIXELS`], held as [`Saved::of_blocks`] does,
/// and what `finish` returns of each; `None` of few pixels.
pub(super) fn forward_saved<F: Factor, R: Send>(
    g: &Geometry,
    x: &[F],
    weight: &[f32],
    format: Format,
    held: Precision,
    finish: impl Fn(&mut [f32]) -> R + Sync,
) -> Option<(Saved, Vec<R>)> {
    if g.pixels() < SEEN_RUNS * SEEN_PIXELS {
        return None;
    }
    let forward = Forward::new(g, x, weight, format);
    let runs = lengths(g.pixels() * g.co, SEEN_PIXELS * g.co);
    Some(Saved::of_blocks(&runs, held, |run, y| {
        for (block, y) in y.chunks_mut(PIXELS * g.co).enumerate() {
            forward.block(run * SEEN_PIXELS + block * PIXELS, y, ());
        }
        finish(y)
    }))
}

struct Forward<'a, F> {
    g: &'a Geometry,
    x: &'a [F],
    /// Kernels of each group.
    panels: Vec<Panels>,
    outside: Vec<F>,
}

impl<'a, F: Factor> Forward<'a, F> {
    fn new(g: &'a Geometry, x: &'a [F], weight: &[f32], format: Format) -> Self {
        let panels = forward_panels(g, weight, format);
        Self { g, x, panels, outside: vec![F::default(); g.group_inputs()] }
    }

    /// The output pixels from `first` on that `y` has room for.
    fn block(&self, first: usize, y: &mut [f32], epilogue: impl Epilogue + Copy) {
        let Self { g, x, panels, outside } = self;
        let pixels: Vec<Pixel> = g.output_pixels(first..first + y.len() / g.co).collect();
        for (group, panels) in panels.iter().enumerate() {
            let starts: Vec<usize> =
                (0..pixels.len()).map(|i| i * g.co + group * g.group_outputs()).collect();
            let out =
                Output { values: y, starts: &starts, write: Write::Replace, sums: Sums::Short };
            if is_gathered(g) {
                let matrix = gather(g, x, &pixels);
                let slices: Vec<&[f32]> = matrix.chunks_exact(g.taps() * g.ci).collect();
                product(&mut Rows { slices: &slices, taps: 1 }, panels, out, &mut { epilogue });
            } else {
                let slices = input_slices(g, x, &pixels, group, outside);
                let mut rows = Rows { slices: &slices, taps: g.taps() };
                F::multiply_rows(&mut rows, panels, out, &mut { epilogue });
            }
        }
    }
}

/// (taps, ci, co) of each group, or (1, taps ci, co) for gathered blocks.
fn forward_panels(g: &Geometry, weight: &[f32], format: Format) -> Vec<Panels> {
    let inputs = g.group_inputs();
    let outputs = g.group_outputs();
    let taps = g.taps();
    if is_gathered(g) {
        let values = &to_hwio(g, weight, 0);
        let source = Source { values, tap: 0, row: outputs, column: 1 };
        return vec![Panels::pack(format, source, &[0], taps * inputs, outputs)];
    }
    let weight = by_tap(weight, taps);
    let all = (0..taps).collect::<Vec<_>>();
    let of_group = |group: usize| {
        let values = &weight[group * outputs * inputs..];
        let source = Source { values, tap: g.co * inputs, row: 1, column: inputs };
        Panels::pack(format, source, &all, inputs, outputs)
    };
    (0..g.groups).map(of_group).collect()
}

/// Slices that each tap of these output pixels reads: a group's channels of an input pixel, or zeros.
pub(super) fn input_slices<'a, F>(
    g: &Geometry,
    x: &'a [F],
    pixels: &[Pixel],
    group: usize,
    outside: &'a [F],
) -> Vec<&'a [F]> {
    let channels = g.group_inputs();
    let mut slices = Vec::with_capacity(pixels.len() * g.taps());
    for &pixel in pixels {
        for ky in 0..g.kh {
            for kx in 0..g.kw {
                slices.push(match g.input_pixel(pixel, ky, kx) {
                    Some(input) => &x[input * g.ci + group * channels..][..channels],
                    None => outside,
                });
            }
        }
    }
    slices
}

/// Input pixels (y, x) with the same remainders of y and x by the stride: the taps that reach them,
/// as operands of a product.
struct Class {
    remainder: [usize; 2],
    taps: Vec<[usize; 2]>,
    /// (taps, co, ci) for each group.
    panels: Vec<Panels>,
}

/// dx (n, h, w, ci), rounded to bf16 if `held` is that, and only then.
pub(super) fn backward_data<F: Factor>(
    g: &Geometry,
    dy: &[F],
    weight: &[f32],
    format: Format,
    held: Precision,
) -> Saved {
    let classes = classes(g, weight, format);
    let leaves_gaps = classes.iter().any(|class| class.taps.is_empty());
    let outside = vec![F::default(); g.group_outputs()];
    let row = g.w * g.ci;
    // Rows over all images; each class has about as many pixels of a block.
    let most = (PIXELS * g.stride[0] * g.stride[1]).div_ceil(g.w.max(1));
    let rows = balanced(g.n * g.h, most, 1);
    Saved::filled(g.n * g.h * row, (rows * row).max(1), held, |start, dx| {
        if leaves_gaps {
            dx.fill(0.0);
        }
        let first = start / g.ci;
        for class in classes.iter().filter(|class| !class.taps.is_empty()) {
            let reached = |(_, pixel): &(usize, Pixel)| {
                [pixel.y % g.stride[0], pixel.x % g.stride[1]] == class.remainder
            };
            let pixels: Vec<(usize, Pixel)> = (0..dx.len() / g.ci)
                .map(|i| (i, Pixel::new(first + i, g.h, g.w)))
                .filter(reached)
                .collect();
            for (group, panels) in class.panels.iter().enumerate() {
                let start = |(i, _): &(usize, Pixel)| i * g.ci + group * g.group_inputs();
                let starts: Vec<usize> = pixels.iter().map(start).collect();
                let slices = output_slices(g, dy, &pixels, class, group, &outside);
                let mut rows = Rows { slices: &slices, taps: class.taps.len() };
                let out =
                    Output { values: dx, starts: &starts, write: Write::Replace, sums: Sums::Long };
                F::multiply_rows(&mut rows, panels, out, &mut ());
            }
        }
    })
}

fn classes(g: &Geometry, weight: &[f32], format: Format) -> Vec<Class> {
    let ([rows, columns], weight) = (g.stride, by_tap(weight, g.taps()));
    let remainders = (0..rows).flat_map(|y| (0..columns).map(move |x| [y, x]));
    remainders
        .map(|remainder| {
            let meets = |[ky, kx]: &[usize; 2]| {
                let [down, right] = [ky * g.dilation[0], kx * g.dilation[1]];
                (remainder[0] + g.padding[0] + rows * down - down).is_multiple_of(rows)
                    && (remainder[1] + g.padding[1] + columns * right - right)
                        .is_multiple_of(columns)
            };
            let all = (0..g.kh).flat_map(|ky| (0..g.kw).map(move |kx| [ky, kx]));
            let taps: Vec<[usize; 2]> = all.filter(meets).collect();
            let panels = |group| backward_panels(g, &weight, group, &taps, format);
            let panels = (0..g.groups).map(panels).collect();
            Class { remainder, taps, panels }
        })
        .collect()
}

/// Right operand for these taps, from a weight [`by_tap`].
fn backward_panels(
    g: &Geometry,
    weight: &[f32],
    group: usize,
    taps: &[[usize; 2]],
    format: Format,
) -> Panels {
    let inputs = g.group_inputs();
    let outputs = g.group_outputs();
    let values = &weight[group * outputs * inputs..];
    let source = Source { values, tap: g.co * inputs, row: inputs, column: 1 };
    let taps: Vec<usize> = taps.iter().map(|[ky, kx]| ky * g.kw + kx).collect();
    Panels::pack(format, source, &taps, outputs, inputs)
}

/// The gradients that come back to these input pixels through the class's taps.
fn output_slices<'a, F>(
    g: &Geometry,
    dy: &'a [F],
    pixels: &[(usize, Pixel)],
    class: &Class,
    group: usize,
    outside: &'a [F],
) -> Vec<&'a [F]> {
    let channels = g.group_outputs();
    let mut slices = Vec::with_capacity(pixels.len() * class.taps.len());
    for &(_, pixel) in pixels {
        for &[ky, kx] in &class.taps {
            slices.push(match g.output_pixel(pixel, ky, kx) {
                Some(output) => &dy[output * g.co + group * channels..][..channels],
                None => outside,
            });
        }
    }
    slices
}
