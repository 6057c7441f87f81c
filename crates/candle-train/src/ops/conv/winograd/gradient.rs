//! Gradient of the kernels: dw = Gt [sum over tiles of (Bt d B)^T (A dy At)] G.

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::components::{COMPONENTS, Components, padded};
use super::gather::Gather;
use super::tiles::{TILE, Tiles};
use super::transform::{Input, KernelGradient, OutputGradient, Transform};
use super::weights::TAPS;
use crate::ops::kernel::{
    Columns, Format, Output, Panels, Source, Sums, Write, best, product, run,
};
use crate::ops::scratch::zeros;

/// Bytes of a block's transformed tiles: a second-level cache.
const BLOCK_BYTES: usize = 1_300_000;
/// Elements of all products above which the 36 products are spread over threads, instead of parts
/// of the tiles, whose sums would take too much memory.
const LARGE_PRODUCTS: usize = 512 << 10;
/// Partial sums otherwise: a fixed number, added in a fixed order.
const PARTS: usize = 8;
/// Tiles that are transformed before the products if the products are large.
const STAGED_TILES: usize = 512;

/// dw (co, ci, 3, 3) of y = x * w, from x and dy.
pub(super) fn gradient(x: Gather<'_, 6, Input>, dy: Gather<'_, TILE, OutputGradient>) -> Vec<f32> {
    let (input, output) = (x.images(), dy.images());
    let work = Work { inputs: x, outputs: dy, tiles: Tiles::new(output) };
    let sums = if work.len() > LARGE_PRODUCTS { vec![work.staged()] } else { work.parts() };
    let mut dw = zeros(output.c * input.c * TAPS);
    dw.par_chunks_mut(input.c * TAPS).enumerate().for_each(|(channel, dw)| {
        run(best(), Row { sums: &sums, channel, inputs: input.c, dw });
    });
    dw
}

struct Work<'a> {
    inputs: Gather<'a, 6, Input>,
    outputs: Gather<'a, TILE, OutputGradient>,
    tiles: Tiles,
}

impl Work<'_> {
    fn widths(&self) -> [usize; 2] {
        [padded(self.inputs.channels()), padded(self.outputs.channels())]
    }

    /// Elements of all products: (padded co, padded ci) per component.
    fn len(&self) -> usize {
        COMPONENTS * self.widths().iter().product::<usize>()
    }

    /// Sums of zero: (padded co, padded ci) per component.
    fn zeros(&self) -> Components {
        let [inputs, outputs] = self.widths();
        Components::zeros(outputs, inputs)
    }

    /// Sums of parts of the tiles, each made by one thread, block by block.
    fn parts(&self) -> Vec<Components> {
        let tiles = BLOCK_BYTES / (4 * COMPONENTS * self.widths().iter().sum::<usize>());
        let blocks = self.tiles.blocks(tiles.clamp(48, 96));
        let parts = PARTS.min(blocks.len());
        let part_sum = |part: usize| {
            let mut sum = self.zeros();
            for bands in &blocks[blocks.len() * part / parts..blocks.len() * (part + 1) / parts] {
                self.block(bands.clone(), &mut sum);
            }
            sum
        };
        (0..parts).into_par_iter().map(part_sum).collect()
    }

    fn block(&self, bands: Range<usize>, sum: &mut Components) {
        let [inputs, outputs] = self.widths();
        let count = self.tiles.within(&bands);
        let mut x = Components::new(count, inputs);
        let mut dy = Components::new(count, outputs);
        self.inputs.run(&self.tiles, bands.clone(), x.split());
        self.outputs.run(&self.tiles, bands, dy.split());
        for (component, sum) in sum.split().into_iter().enumerate() {
            add_product(&x, &dy, component, sum);
        }
    }

    /// Many tiles are transformed, then each component's product is added by one thread.
    fn staged(&self) -> Components {
        let mut sum = self.zeros();
        let blocks = self.tiles.blocks(48);
        let group = (STAGED_TILES / self.tiles.within(&blocks[0])).max(1);
        for blocks in blocks.chunks(group) {
            let x = self.inputs.run_all(&self.tiles, blocks);
            let dy = self.outputs.run_all(&self.tiles, blocks);
            sum.par_split().enumerate().for_each(|(component, sum)| {
                add_product(&x, &dy, component, sum);
            });
        }
        sum
    }
}

/// sum (co, ci) += dy^T x over the tiles of one component.
fn add_product(x: &Components, dy: &Components, component: usize, sum: &mut [f32]) {
    let (inputs, outputs) = (x.columns(), dy.columns());
    let (x, dy) = (x.get(component), dy.get(component));
    let source = Source { values: x, tap: 0, row: inputs, column: 1 };
    let x = Panels::pack(Format::F32, source, &[0], x.len() / inputs, inputs);
    let slices: Vec<&[f32]> = dy.chunks_exact(outputs).collect();
    let starts: Vec<usize> = (0..outputs).map(|row| row * inputs).collect();
    let out = Output { values: sum, starts: &starts, write: Write::Add, sums: Sums::Long };
    product(&mut Columns::new(&slices, outputs), &x, out, &mut ());
}

/// Adds the sums of one output channel in their order, and transforms them back.
struct Row<'a> {
    sums: &'a [Components],
    channel: usize,
    inputs: usize,
    dw: &'a mut [f32],
}

impl WithSimd for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for first in (0..self.inputs).step_by(S::F32_LANES) {
            let mut totals = [[simd.splat_f32s(0.0); 6]; 6];
            for sum in self.sums {
                for component in 0..COMPONENTS {
                    let at = self.channel * sum.columns() + first;
                    let value = S::as_simd_f32s(&sum.get(component)[at..]).0[0];
                    let total = &mut totals[component / 6][component % 6];
                    *total = simd.add_f32s(*total, value);
                }
            }
            let kernels = KernelGradient::tile(simd, totals);
            let mut taps = [[0.0f32; 16]; TAPS];
            for (values, &kernel) in taps.iter_mut().zip(kernels.as_flattened()) {
                S::as_mut_simd_f32s(values).0[0] = kernel;
            }
            let lanes = S::F32_LANES.min(self.inputs - first);
            let kernels = self.dw[first * TAPS..].chunks_exact_mut(TAPS).take(lanes);
            for (lane, kernel) in kernels.enumerate() {
                for (value, values) in kernel.iter_mut().zip(&taps) {
                    *value = values[lane];
                }
            }
        }
    }
}
