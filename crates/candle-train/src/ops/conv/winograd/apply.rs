//! Output tiles = products of transformed input tiles and transformed kernels.

use std::ops::Range;

use rayon::prelude::*;

use super::components::{COMPONENTS, Components, padded};
use super::gather::Gather;
use super::scatter::Scatter;
use super::tiles::{Images, Tiles};
use super::transform::Input;
use super::weights::Kernels;
use crate::ops::kernel::{Output, Panels, Rows, Sums, Write, best, product, run};
use crate::ops::scratch::{filled_blocks, zeros};

/// Bytes of a block's transformed tiles and products: a second-level cache.
const BLOCK_BYTES: usize = 1_300_000;
/// Elements of the transformed kernels above which they are read once for many tiles, instead of
/// once for each block: they fit into no cache.
const LARGE_KERNELS: usize = 4 << 20;
/// Tiles that are transformed before the products in that case.
const STAGED_TILES: usize = 512;

/// y (images of `output`) = x, which `gather` reads, * kernels; rounded to bf16 if it `rounds`.
pub(super) fn apply(
    gather: Gather<'_, 6, Input>,
    kernels: &Kernels<'_>,
    output: Images,
    rounds: bool,
) -> Vec<f32> {
    let large = padded(kernels.rows) * padded(kernels.columns) * COMPONENTS > LARGE_KERNELS;
    let kernels = kernels.panels();
    let tiles = Tiles::new(output);
    let work = Work { gather, kernels, tiles, rounds };
    let size = BLOCK_BYTES / (4 * COMPONENTS * (work.inputs() + work.outputs()));
    let blocks = tiles.blocks(size.clamp(48, 96));
    if large {
        let mut y = zeros(output.len());
        work.staged(&blocks, &mut y);
        return y;
    }
    let lens: Vec<usize> = blocks.iter().map(|bands| tiles.values(bands)).collect();
    let [y] = filled_blocks(&lens, |block, [y]| work.block(blocks[block].clone(), y));
    y
}

struct Work<'a> {
    gather: Gather<'a, 6, Input>,
    /// (inputs, outputs) per component.
    kernels: [Panels; COMPONENTS],
    tiles: Tiles,
    rounds: bool,
}

impl Work<'_> {
    fn inputs(&self) -> usize {
        padded(self.gather.channels())
    }

    fn outputs(&self) -> usize {
        padded(self.tiles.output.c)
    }

    fn block(&self, bands: Range<usize>, y: &mut [f32]) {
        let count = self.tiles.within(&bands);
        let mut inputs = Components::new(count, self.inputs());
        let mut products = Components::new(count, self.outputs());
        self.gather.run(&self.tiles, bands.clone(), inputs.split());
        for (component, product) in products.split().into_iter().enumerate() {
            self.multiply(component, &inputs, product);
        }
        self.scatter(&products.rows(0..count), bands, y);
    }

    /// A few blocks at a time: all are transformed, then each product is made for all of them, so
    /// that the kernels are read once.
    fn staged(&self, blocks: &[Range<usize>], y: &mut [f32]) {
        let mut slices = self.tiles.cut(y, blocks);
        let group = (STAGED_TILES / self.tiles.within(&blocks[0])).max(1);
        for (blocks, slices) in blocks.chunks(group).zip(slices.chunks_mut(group)) {
            let inputs = self.gather.run_all(&self.tiles, blocks);
            let first = blocks[0].start;
            let row = |band: usize| self.tiles.within(&(first..band));
            let mut products = Components::new(row(blocks[blocks.len() - 1].end), self.outputs());
            products.par_split().enumerate().for_each(|(component, product)| {
                self.multiply(component, &inputs, product);
            });
            blocks.par_iter().zip(slices).for_each(|(bands, y)| {
                let rows = row(bands.start)..row(bands.end);
                self.scatter(&products.rows(rows), bands.clone(), y);
            });
        }
    }

    fn scatter(&self, products: &[&[f32]; COMPONENTS], bands: Range<usize>, y: &mut [f32]) {
        let Self { tiles, rounds, .. } = self;
        run(best(), Scatter { products, tiles, bands, y, rounds: *rounds });
    }

    fn multiply(&self, component: usize, inputs: &Components, values: &mut [f32]) {
        let outputs = self.outputs();
        let input = inputs.get(component);
        let slices: Vec<&[f32]> = input.chunks_exact(inputs.columns()).collect();
        let starts: Vec<usize> = (0..slices.len()).map(|tile| tile * outputs).collect();
        let out = Output { values, starts: &starts, write: Write::Replace, sums: Sums::Long };
        let mut rows = Rows { slices: &slices, taps: 1 };
        product(&mut rows, &self.kernels[component], out, &mut ());
    }
}
