//! Gradient of the kernels: dw = Gt [sum over tiles of (Bt d B)^T (A dy At)] G.

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::components::{COMPONENTS, Components, padded};
use super::gather::Gather;
use super::tiles::{Needed, TILE, TileSize, Tiles};
use super::transform::{Input, KernelGradient, OutputGradient, Transform};
use super::weights::TAPS;
use crate::ops::element::Element;
use crate::ops::kernel::{
    Columns, Output, Strided, Sums, Write, best, product, run, transpose_best,
};
use crate::ops::scratch::{Scratch, zeros};

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
pub(super) fn gradient<X: Element, D: Element>(
    x: Gather<'_, 6, Input, X>,
    dy: Gather<'_, TILE, OutputGradient, D>,
) -> Vec<f32> {
    let input = x.images();
    let output = dy.images();
    let work = Work { inputs: x, outputs: dy, tiles: Tiles::new(output) };
    let sums = if work.len() > LARGE_PRODUCTS { vec![work.staged()] } else { work.parts() };
    let mut dw = zeros(output.c * input.c * TAPS);
    let inputs = padded(input.c);
    dw.par_chunks_mut(input.c * TAPS).enumerate().for_each(|(channel, dw)| {
        let mut taps = Scratch::new(TAPS * inputs);
        run(best(), Row { sums: &sums, channel, taps: &mut taps });
        let from = Strided { values: &*taps, stride: inputs };
        transpose_best(from, Strided { values: dw, stride: TAPS }, (input.c, TAPS));
    });
    dw
}

struct Work<'a, X, D> {
    inputs: Gather<'a, 6, Input, X>,
    outputs: Gather<'a, TILE, OutputGradient, D>,
    tiles: Tiles,
}

impl<X: Element, D: Element> Work<'_, X, D> {
    fn widths(&self) -> [usize; 2] {
        [padded(self.inputs.channels()), padded(self.outputs.channels())]
    }

    /// Elements of all products: (padded co, padded ci) per component.
    fn len(&self) -> usize {
        COMPONENTS * self.widths().iter().product::<usize>()
    }

    /// Room for sums: (padded co, padded ci) per component.
    fn sums(&self) -> Components {
        let [inputs, outputs] = self.widths();
        Components::new(outputs, inputs)
    }

    /// Sums of parts of the tiles, each made by one thread, block by block.
    fn parts(&self) -> Vec<Components> {
        let tiles = BLOCK_BYTES / (4 * COMPONENTS * self.widths().iter().sum::<usize>());
        let blocks = self.tiles.blocks(tiles.clamp(48, 96));
        let parts = PARTS.min(blocks.len());
        let part_sum = |part: usize| {
            let mut sum = self.sums();
            let own = &blocks[blocks.len() * part / parts..blocks.len() * (part + 1) / parts];
            for (i, bands) in own.iter().enumerate() {
                self.block(bands.clone(), &mut sum, written(i));
            }
            sum
        };
        (0..parts).into_par_iter().map(part_sum).collect()
    }

    fn block(&self, bands: Range<usize>, sum: &mut Components, write: Write) {
        let [inputs, outputs] = self.widths();
        let count = self.tiles.within(&bands);
        let mut x = Components::new(count, inputs);
        let mut dy = Components::new(count, outputs);
        self.inputs.run(&self.tiles, bands.clone(), x.split());
        self.outputs.run(&self.tiles, bands.clone(), dy.split());
        let needed = self.tiles.needed(&bands);
        for (component, sum) in sum.split().into_iter().enumerate() {
            add_product(&x, &dy, component, &needed, sum, write);
        }
    }

    /// Many tiles are transformed, then each component's product is added by one thread.
    fn staged(&self) -> Components {
        let mut sum = self.sums();
        let blocks = self.tiles.blocks(48);
        let group = (STAGED_TILES / self.tiles.within(&blocks[0])).max(1);
        for (i, blocks) in blocks.chunks(group).enumerate() {
            let x = self.inputs.run_all(&self.tiles, blocks);
            let dy = self.outputs.run_all(&self.tiles, blocks);
            let needed = self.tiles.needed(&(blocks[0].start..blocks[blocks.len() - 1].end));
            sum.par_split().enumerate().for_each(|(component, sum)| {
                add_product(&x, &dy, component, &needed, sum, written(i));
            });
        }
        sum
    }
}

/// Replaces or adds, for block `i` of a sum.
fn written(i: usize) -> Write {
    if i == 0 { Write::Replace } else { Write::Add }
}

/// sum (co, ci) becomes or grows by dy^T x over the tiles that need a component.
fn add_product(
    x: &Components,
    dy: &Components,
    component: usize,
    needed: &Needed,
    sum: &mut [f32],
    write: Write,
) {
    let rows = dy.needed(component, needed);
    let Some(outputs) = rows.first().map(|row| row.len()) else {
        if write == Write::Replace {
            sum.fill(0.0);
        }
        return;
    };
    let x = x.panels(component, needed);
    let starts: Vec<usize> = (0..outputs).map(|row| row * (sum.len() / outputs)).collect();
    let out = Output { values: sum, starts: &starts, write, sums: Sums::Long };
    product(&mut Columns::new(&rows, outputs), &x, out, &mut ());
}

/// Adds the sums of one output channel in their order, and transforms them back: (taps, inputs).
struct Row<'a> {
    sums: &'a [Components],
    channel: usize,
    taps: &'a mut [f32],
}

impl WithSimd for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let inputs = self.taps.len() / TAPS;
        let vectors = inputs / S::F32_LANES;
        let mut workspace = KernelGradient::workspace(simd);
        let taps = S::as_mut_simd_f32s(self.taps).0;
        for vector in 0..vectors {
            let mut totals = [[simd.splat_f32s(0.0); 6]; 6];
            for sum in self.sums {
                for component in 0..COMPONENTS {
                    let at = self.channel * inputs + vector * S::F32_LANES;
                    let value = S::as_simd_f32s(&sum.get(component)[at..]).0[0];
                    let total = &mut totals[component / 6][component % 6];
                    *total = simd.add_f32s(*total, value);
                }
            }
            KernelGradient::tile(
                simd,
                TileSize::WHOLE,
                &mut workspace,
                #[inline(always)]
                |row, column| totals[row][column],
                #[inline(always)]
                |row, values| {
                    for (column, value) in values.into_iter().enumerate() {
                        taps[(3 * row + column) * vectors + vector] = value;
                    }
                },
            );
        }
    }
}
