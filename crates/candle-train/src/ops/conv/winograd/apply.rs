//! Output tiles = products of transformed input tiles and transformed kernels.

use std::ops::Range;

use rayon::prelude::*;

use super::components::{COMPONENTS, Components, padded};
use super::gather::Gather;
use super::scatter::scatter;
use super::tiles::{Images, Tiles};
use super::transform::Input;
use super::weights::Kernels;
use crate::ops::kernel::{Output, Panels, Rows, Sums, Write, product};

/// Bytes of a block's transformed tiles and products: a second-level cache.
const BLOCK_BYTES: usize = 1_300_000;
/// Elements of the transformed kernels above which they are read once for many tiles, instead of
/// once for each block: they fit into no cache.
const LARGE_KERNELS: usize = 4 << 20;
/// Tiles that are transformed before the products in that case.
const STAGED_TILES: usize = 512;

/// y (images of `output`) = x (images of `input`) * kernels, with `padding` rows and columns of
/// zeros.
pub(super) fn apply(
    x: &[f32],
    input: Images,
    kernels: &Kernels<'_>,
    output: Images,
    padding: [usize; 2],
    y: &mut [f32],
) {
    let large = padded(kernels.rows) * padded(kernels.columns) * COMPONENTS > LARGE_KERNELS;
    let kernels = kernels.panels();
    let tiles = Tiles::new(output);
    let work = Work { gather: Gather::new(x, input, padding), kernels, tiles };
    let size = BLOCK_BYTES / (4 * COMPONENTS * (work.inputs() + work.outputs()));
    let blocks = tiles.blocks(size.clamp(48, 96));
    if large {
        work.staged(&blocks, y);
    } else {
        let slices = tiles.cut(y, &blocks);
        blocks.into_par_iter().zip(slices).for_each(|(bands, y)| work.block(bands, y));
    }
}

struct Work<'a> {
    gather: Gather<'a, 6, Input>,
    /// (inputs, outputs) per component.
    kernels: [Panels; COMPONENTS],
    tiles: Tiles,
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
        scatter(&products.rows(0..count), &self.tiles, bands, y);
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
                scatter(&products.rows(rows), &self.tiles, bands.clone(), y);
            });
        }
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
