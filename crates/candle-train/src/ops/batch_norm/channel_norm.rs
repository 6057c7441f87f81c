//! The arithmetic of batch normalisation over slices: x is (rows, channels), row-major, f32 or
//! bf16.
//!
//! Forward is one pass for the statistics and one for the output, backward one for the sums and one
//! for the gradient of x. Blocks of rows are fixed and merged in order, so threads do not change
//! the bits.

use candle_core::Result;
use rayon::prelude::*;

use super::Activation;
use super::sync::{Extent, Moments};
use crate::ops::element::{Element, Numbers, WideBuffer};
use crate::ops::simd::{PerChannel, build, change_blocks, for_each_piece, vectorised};

/// Rows per block.
pub(in crate::ops) const ROWS: usize = 128;

/// Columns whose sums stay in registers while rows go by. Of fewer channels, several rows make one.
const WIDTH: usize = 64;

/// Constants of each channel that the passes read.
pub(super) struct Channels<'a> {
    /// Mean of x.
    pub(super) mean: &'a [f32],
    /// 1 / sqrt(variance + eps).
    pub(super) inverse_std: &'a [f32],
    /// Scale.
    pub(super) gamma: &'a [f32],
    /// Shift.
    pub(super) beta: &'a [f32],
    /// Activation after the normalisation and the residual.
    pub(super) activation: Activation,
}

/// Source from which backward finds where the rectifier was open.
#[derive(Clone, Copy)]
pub(super) enum Gate<'a, E> {
    /// The output recomputed from x: no residual was added.
    Input,
    /// The sign of the given output. The gradient before the activation replaces that
    /// after it, and is the gradient of the residual.
    Output(&'a [E]),
}

/// Gradients of scale and shift, one entry per channel.
pub(super) struct AffineGradient {
    pub(super) gamma: Vec<f32>,
    pub(super) beta: Vec<f32>,
}

/// Mean and squared deviations of each channel: each block of rows finds its own while it is in the
/// cache, and blocks are merged in a fixed order.
pub(in crate::ops) fn moments(x: Numbers<'_>, c: usize) -> Moments {
    let n = x.len();
    let block = ROWS * c;
    let of_block = |i: usize| {
        let mut buffer = WideBuffer::default();
        block_moments(x.read(i * block..n.min((i + 1) * block), &mut buffer), c)
    };
    let parts: Vec<Moments> = (0..n.div_ceil(block)).into_par_iter().map(of_block).collect();
    Moments::of_all(c, parts)
}

/// Moments of blocks of rows that are in the cache, on the calling thread. Merged with those of other
/// rows, as many blocks before and after, they are [`moments`] of all.
pub(in crate::ops) fn near_moments(x: &[f32], c: usize) -> Vec<Moments> {
    x.chunks(ROWS * c).map(|block| block_moments(block, c)).collect()
}

/// Mean and sum of squared deviations of each channel of one block.
fn block_moments(block: &[f32], c: usize) -> Moments {
    let n = (block.len() / c) as f32;
    let width = width(c);
    let mut sums = vec![0f32; width];
    vectorised(
        #[inline(always)]
        || {
            accumulate(
                [&mut sums],
                [block],
                [],
                #[inline(always)]
                |[x], []| [x],
            );
        },
    );
    let mean: Vec<f32> = folded(&sums, c).map(|sum| sum / n).collect();
    let wide: Vec<f32> = mean.iter().copied().cycle().take(width).collect();
    let mut rest = vec![0f32; width];
    let mut squares = vec![0f32; width];
    vectorised(
        #[inline(always)]
        || {
            accumulate(
                [&mut rest, &mut squares],
                [block],
                [&wide],
                #[inline(always)]
                |[x], [mean]| [x - mean, (x - mean) * (x - mean)],
            );
        },
    );
    // The deviations sum to zero but for the rounding of the mean, which this corrects.
    let parts = folded(&rest, c).zip(folded(&squares, c)).zip(&mean);
    let channel = |((rest, squares), mean): ((f32, f32), &f32)| {
        let rest = f64::from(rest / n);
        let squares = f64::from(squares) - f64::from(n) * rest * rest;
        [f64::from(*mean) + rest, squares.max(0.0)]
    };
    Moments { rows: block.len() / c, channels: parts.map(channel).collect() }
}

/// Values whose sums are kept side by side: the least number of rows that are whole strips of
/// [`WIDTH`] columns, or, where that would be large, one row.
fn width(c: usize) -> usize {
    let rows = WIDTH >> c.trailing_zeros().min(WIDTH.trailing_zeros());
    if c > 8 * WIDTH { c } else { c * rows }
}

/// Sums of the rows that lie side by side in `wide`, per channel.
fn folded(wide: &[f32], c: usize) -> impl Iterator<Item = f32> {
    (0..c).map(move |i| wide.iter().skip(i).step_by(c).sum())
}

/// Adds `f` of each column's values in a row and of its constants to the column's `sums`, for all
/// rows. `rows` may end within a row. `f` must be `#[inline(always)]`.
///
/// The sums of [`WIDTH`] columns stay in registers while the rows go by.
#[inline(always)]
fn accumulate<E: Element, const SUMS: usize, const INPUTS: usize, const CONSTANTS: usize>(
    mut sums: [&mut [f32]; SUMS],
    rows: [&[E]; INPUTS],
    constants: [&[f32]; CONSTANTS],
    f: impl Fn([f32; INPUTS], [f32; CONSTANTS]) -> [f32; SUMS],
) {
    let n = rows[0].len();
    let width = sums[0].len();
    let strips = width / WIDTH * WIDTH;
    for start in (0..strips).step_by(WIDTH) {
        let mut added = [[0f32; WIDTH]; SUMS];
        let mut fixed = [[0f32; WIDTH]; CONSTANTS];
        for (fixed, constants) in fixed.iter_mut().zip(constants) {
            fixed.copy_from_slice(&constants[start..start + WIDTH]);
        }
        for row in 0..n / width {
            let at = row * width + start;
            let inputs = rows.map(
                #[inline(always)]
                |rows| &rows[at..][..WIDTH],
            );
            for i in 0..WIDTH {
                let parts = f(
                    column(&inputs, i),
                    column(&fixed.each_ref().map(<[f32; WIDTH]>::as_slice), i),
                );
                for (added, part) in added.iter_mut().zip(parts) {
                    added[i] += part;
                }
            }
        }
        for (sums, added) in sums.iter_mut().zip(&added) {
            for (sum, part) in sums[start..start + WIDTH].iter_mut().zip(added) {
                *sum += part;
            }
        }
    }
    // Columns beyond the last strip, and all columns of a row that is cut short.
    for (row, at) in (0..n).step_by(width).enumerate() {
        let first = if row < n / width { strips } else { 0 };
        for i in first..width.min(n - at) {
            let mut inputs = [0.0; INPUTS];
            for (input, rows) in inputs.iter_mut().zip(rows) {
                *input = rows[at + i].wide();
            }
            let mut fixed = [0.0; CONSTANTS];
            for (fixed, constants) in fixed.iter_mut().zip(constants) {
                *fixed = constants[i];
            }
            let parts = f(inputs, fixed);
            for (sums, part) in sums.iter_mut().zip(parts) {
                sums[i] += part;
            }
        }
    }
}

/// Entry `i` of each slice.
#[inline(always)]
fn column<E: Element, const N: usize>(slices: &[&[E]; N], i: usize) -> [f32; N] {
    let mut column = [0.0; N];
    for (value, slice) in column.iter_mut().zip(slices) {
        *value = slice[i].wide();
    }
    column
}

#[inline(always)]
pub(in crate::ops) fn normalised(x: f32, mean: f32, scale: f32, shift: f32) -> f32 {
    (x - mean) * scale + shift
}

/// max(y, least), but NaN stays.
#[inline(always)]
fn at_least(least: f32, y: f32) -> f32 {
    if y < least { least } else { y }
}

impl Channels<'_> {
    fn scale(&self) -> impl ExactSizeIterator<Item = f32> + Clone {
        self.gamma.iter().zip(self.inverse_std).map(|(gamma, inverse_std)| gamma * inverse_std)
    }

    /// activation(gamma (x - mean) / std + beta + residual).
    pub(super) fn apply<E: Element>(&self, x: &[E], residual: Option<Numbers<'_>>) -> Vec<E> {
        let mean = PerChannel::new(self.mean.iter().copied());
        let scale = PerChannel::new(self.scale());
        let shift = PerChannel::new(self.beta.iter().copied());
        let apply = |start: usize, y: &mut [E]| {
            let n = y.len();
            let x = &x[start..][..n];
            let constants = [mean.at(start, n), scale.at(start, n), shift.at(start, n)];
            match residual {
                None => apply_piece::<E, E>(y, x, None, constants, self.activation),
                Some(Numbers::F32(residual)) => {
                    apply_piece(y, x, Some(&residual[start..][..n]), constants, self.activation);
                }
                Some(Numbers::Bf16(residual)) => {
                    apply_piece(y, x, Some(&residual[start..][..n]), constants, self.activation);
                }
            }
        };
        build(x.len(), |start, block| for_each_piece(start, block, apply))
    }

    /// Gradients of gamma and beta, and over `dy` that of x; or, with [`Gate::Output`], over `dy`
    /// that of the residual, and that of x is returned. The statistics were taken of
    /// `batch`.
    pub(super) fn backward<E: Element>(
        &self,
        x: &[E],
        gate: Gate<'_, E>,
        dy: &mut [E],
        batch: &Extent,
    ) -> Result<(AffineGradient, Option<Vec<E>>)> {
        let sums = self.sums(x, gate, dy);
        let affine = self.affine_gradient(&sums);
        let slope = InputSlope::new(self, &self.affine_gradient(&batch.sum(sums)?), batch.rows);
        let dx = match gate {
            Gate::Input => {
                let pull = self.pull_through_gate(x, &slope);
                change_blocks(dy, |start, block| for_each_piece(start, block, &pull));
                None
            }
            Gate::Output(_) => {
                let pull = |start: usize, dx: &mut [E]| {
                    let g = &dy[start..][..dx.len()];
                    let x = &x[start..][..dx.len()];
                    let constants = slope.at(start, dx.len());
                    vectorised(
                        #[inline(always)]
                        || input_gradient(dx, g, x, constants),
                    );
                };
                Some(build(x.len(), |start, block| for_each_piece(start, block, pull)))
            }
        };
        Ok((affine, dx))
    }

    /// Returns a function that turns a piece of the gradient of the output into one of that of x.
    fn pull_through_gate<E: Element>(
        &self,
        x: &[E],
        slope: &InputSlope,
    ) -> impl Fn(usize, &mut [E]) + Sync {
        let relu = self.activation == Activation::Relu;
        let shift = relu.then(|| PerChannel::new(self.beta.iter().copied()));
        move |start, dy| {
            let n = dy.len();
            let x = &x[start..][..n];
            let shift = shift.as_ref().map(|shift| shift.at(start, n));
            let constants = slope.at(start, n);
            vectorised(
                #[inline(always)]
                || {
                    if let Some(shift) = shift {
                        close_by_input(dy, x, [constants[1], constants[0], shift]);
                    }
                    input_gradient_in_place(dy, x, constants);
                },
            );
        }
    }

    /// Sums over rows of g, then of g (x - mean), with g the gradient before the activation.
    fn sums<E: Element>(&self, x: &[E], gate: Gate<'_, E>, dy: &mut [E]) -> Vec<f64> {
        let c = self.mean.len();
        let repeated = |values: Vec<f32>| -> Vec<f32> {
            values.iter().copied().cycle().take(width(c)).collect()
        };
        let mean = repeated(self.mean.to_vec());
        let scale = repeated(self.scale().collect());
        let shift = repeated(self.beta.to_vec());
        let relu = self.activation == Activation::Relu;
        let sums = |(index, dy): (usize, &mut [E])| {
            let at = index * ROWS * c..index * ROWS * c + dy.len();
            let x = &x[at.clone()];
            let mut sums = vec![0f32; 2 * mean.len()];
            let (plain, weighted) = sums.split_at_mut(mean.len());
            vectorised(
                #[inline(always)]
                || match (gate, relu) {
                    (Gate::Input, true) => {
                        add_gated_gradients(plain, weighted, dy, x, [&mean, &scale, &shift]);
                    }
                    (Gate::Output(y), true) => {
                        close_by_output(dy, &y[at.clone()]);
                        add_gradients(plain, weighted, dy, x, &mean);
                    }
                    (_, false) => add_gradients(plain, weighted, dy, x, &mean),
                },
            );
            folded(plain, c).chain(folded(weighted, c)).collect()
        };
        let blocks: Vec<Vec<f32>> = dy.par_chunks_mut(ROWS * c).enumerate().map(sums).collect();
        let mut total = vec![0f64; 2 * c];
        for sums in blocks {
            total.iter_mut().zip(sums).for_each(|(total, sum)| *total += f64::from(sum));
        }
        total
    }

    /// The gradients of gamma and beta, from these sums.
    fn affine_gradient(&self, sums: &[f64]) -> AffineGradient {
        let (plain, weighted) = sums.split_at(self.mean.len());
        let of_gamma = weighted.iter().zip(self.inverse_std);
        AffineGradient {
            gamma: of_gamma.map(|(sum, inverse)| (sum * f64::from(*inverse)) as f32).collect(),
            beta: plain.iter().map(|&sum| sum as f32).collect(),
        }
    }
}

/// dx = gamma / std (g - mean(g) - x̂ mean(g x̂)), as scale g + slope (x - mean) + shift per
/// channel.
struct InputSlope([PerChannel; 4]);

impl InputSlope {
    fn new(channels: &Channels<'_>, affine: &AffineGradient, rows: usize) -> Self {
        let rows = rows as f32;
        let scale = || channels.scale();
        let of_gamma = affine.gamma.iter().zip(channels.inverse_std);
        let slope = scale().zip(of_gamma).map(|(scale, (g, inverse))| -scale * g * inverse / rows);
        let shift = scale().zip(&affine.beta).map(|(scale, g)| -scale * g / rows);
        Self([
            PerChannel::new(scale()),
            PerChannel::new(channels.mean.iter().copied()),
            PerChannel::new(slope),
            PerChannel::new(shift),
        ])
    }

    fn at(&self, start: usize, n: usize) -> [&[f32]; 4] {
        self.0.each_ref().map(|channels| channels.at(start, n))
    }
}

fn apply_piece<E: Element, R: Element>(
    y: &mut [E],
    x: &[E],
    residual: Option<&[R]>,
    [mean, scale, shift]: [&[f32]; 3],
    activation: Activation,
) {
    let least = if activation == Activation::Relu { 0.0 } else { f32::NEG_INFINITY };
    vectorised(
        #[inline(always)]
        move || {
            let constants = mean.iter().zip(scale).zip(shift);
            let places = y.iter_mut().zip(x).zip(constants);
            if let Some(residual) = residual {
                for (((y, x), ((mean, scale), shift)), residual) in places.zip(residual) {
                    let sum = normalised(x.wide(), *mean, *scale, *shift) + residual.wide();
                    *y = E::nearest(at_least(least, sum));
                }
            } else {
                for ((y, x), ((mean, scale), shift)) in places {
                    *y = E::nearest(at_least(least, normalised(x.wide(), *mean, *scale, *shift)));
                }
            }
        },
    );
}

/// Zeroes the gradient where the output, found again as forward found it, was not positive.
#[inline(always)]
fn close_by_input<E: Element>(g: &mut [E], x: &[E], [mean, scale, shift]: [&[f32]; 3]) {
    for ((((g, x), mean), scale), shift) in g.iter_mut().zip(x).zip(mean).zip(scale).zip(shift) {
        let is_open = normalised(x.wide(), *mean, *scale, *shift) > 0.0;
        *g = if is_open { *g } else { E::default() };
    }
}

#[inline(always)]
fn close_by_output<E: Element>(g: &mut [E], y: &[E]) {
    for (g, y) in g.iter_mut().zip(y) {
        *g = if y.wide() > 0.0 { *g } else { E::default() };
    }
}

/// Adds the rows of g to `plain`, and those of g (x - mean) to `weighted`; each is as long as
/// `mean`.
#[inline(always)]
pub(in crate::ops) fn add_gradients<E: Element>(
    plain: &mut [f32],
    weighted: &mut [f32],
    g: &[E],
    x: &[E],
    mean: &[f32],
) {
    accumulate(
        [plain, weighted],
        [g, x],
        [mean],
        #[inline(always)]
        |[g, x], [mean]| [g, g * (x - mean)],
    );
}

/// [`add_gradients`] with g 0 where the output, recomputed as in forward, was not positive.
#[inline(always)]
fn add_gated_gradients<E: Element>(
    plain: &mut [f32],
    weighted: &mut [f32],
    g: &[E],
    x: &[E],
    constants: [&[f32]; 3],
) {
    accumulate(
        [plain, weighted],
        [g, x],
        constants,
        #[inline(always)]
        |[g, x], [mean, scale, shift]| {
            let g = if normalised(x, mean, scale, shift) > 0.0 { g } else { 0.0 };
            [g, g * (x - mean)]
        },
    );
}

/// scale g + slope (x - mean) + shift, where g was.
#[inline(always)]
pub(in crate::ops) fn input_gradient_in_place<E: Element>(
    g: &mut [E],
    x: &[E],
    [scale, mean, slope, shift]: [&[f32]; 4],
) {
    let constants = scale.iter().zip(mean).zip(slope).zip(shift);
    for ((g, x), (((scale, mean), slope), shift)) in g.iter_mut().zip(x).zip(constants) {
        *g = E::nearest(scale * g.wide() + slope * (x.wide() - mean) + shift);
    }
}

/// [`input_gradient_in_place`], to `dx`.
#[inline(always)]
fn input_gradient<E: Element>(
    dx: &mut [E],
    g: &[E],
    x: &[E],
    [scale, mean, slope, shift]: [&[f32]; 4],
) {
    let constants = scale.iter().zip(mean).zip(slope).zip(shift);
    for (((dx, g), x), (((scale, mean), slope), shift)) in
        dx.iter_mut().zip(g).zip(x).zip(constants)
    {
        *dx = E::nearest(scale * g.wide() + slope * (x.wide() - mean) + shift);
    }
}
