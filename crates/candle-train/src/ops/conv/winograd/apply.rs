//! Output tiles = products of transformed input tiles and transformed kernels, written as pixels.

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::components::{COMPONENTS, Components, padded};
use super::gather::Gather;
use super::tiles::{Images, Needed, TILE, Tiles};
use super::transform::{self, Input, Transform, rounded};
use super::weights::Kernels;
use crate::Precision;
use crate::ops::element::Element;
use crate::ops::kernel::{Output, Panels, Rows, Sums, Write, best, product, run};
use crate::ops::saved::Saved;
use crate::ops::scratch::zeros;

/// Bytes of a block's transformed tiles and products: a second-level cache.
const BLOCK_BYTES: usize = 1_300_000;
/// Elements of the transformed kernels above which they are read once for many tiles, instead of
/// once for each block: they fit into no cache.
const LARGE_KERNELS: usize = 4 << 20;
/// Tiles that are transformed before the products in that case.
const STAGED_TILES: usize = 512;

/// y (images of `output`) = x, which `gather` reads, * kernels; rounded to bf16 if it `rounds`.
/// Held as [`Saved::of_blocks`] does.
pub(super) fn apply<E: Element>(
    gather: Gather<'_, 6, Input, E>,
    kernels: &Kernels<'_>,
    output: Images,
    rounds: bool,
    held: Precision,
) -> Saved {
    let work = Work::new(gather, kernels, output, rounds);
    if work.is_staged {
        return Saved::new(work.staged(), held);
    }
    Saved::of_blocks(&work.lengths(), held, |block, y| work.block(block, y)).0
}

/// [`apply`] rounded to bf16 if `precision` is that, and what `see` makes of each block of pixels,
/// if all blocks begin at multiples of `pixels`.
pub(super) fn apply_saved<E: Element, R: Send>(
    gather: Gather<'_, 6, Input, E>,
    kernels: &Kernels<'_>,
    output: Images,
    precision: Precision,
    pixels: usize,
    see: impl Fn(&[f32]) -> R + Sync,
) -> (Saved, Option<Vec<R>>) {
    let mut work = Work::new(gather, kernels, output, precision == Precision::Bf16);
    if work.is_staged {
        return (Saved::new(work.staged(), precision), None);
    }
    let aligned = work.tiles.aligned(&work.blocks, pixels);
    let is_seen = aligned.is_some();
    work.blocks = aligned.unwrap_or(work.blocks);
    let (y, seen) = Saved::of_blocks(&work.lengths(), precision, |block, y| {
        work.block(block, y);
        is_seen.then(|| see(y))
    });
    (y, seen.into_iter().collect())
}

struct Work<'a, E> {
    gather: Gather<'a, 6, Input, E>,
    /// (inputs, outputs) per component.
    kernels: [Panels; COMPONENTS],
    tiles: Tiles,
    /// Bands of tiles that are worked on together.
    blocks: Vec<Range<usize>>,
    rounds: bool,
    is_staged: bool,
}

impl<'a, E: Element> Work<'a, E> {
    fn new(
        gather: Gather<'a, 6, Input, E>,
        kernels: &Kernels<'_>,
        output: Images,
        rounds: bool,
    ) -> Self {
        let elements = padded(kernels.rows) * padded(kernels.columns) * COMPONENTS;
        let kernels = kernels.panels();
        let tiles = Tiles::new(output);
        let is_staged = elements > LARGE_KERNELS;
        let mut work = Self { gather, kernels, tiles, blocks: Vec::new(), rounds, is_staged };
        let size = BLOCK_BYTES / (4 * COMPONENTS * (work.inputs() + work.outputs()));
        work.blocks = tiles.blocks(size.clamp(48, 96));
        work
    }

    /// Values of the output of each block.
    fn lengths(&self) -> Vec<usize> {
        self.blocks.iter().map(|bands| self.tiles.values(bands)).collect()
    }

    fn inputs(&self) -> usize {
        padded(self.gather.channels())
    }

    fn outputs(&self) -> usize {
        padded(self.tiles.output.c)
    }

    fn block(&self, block: usize, y: &mut [f32]) {
        let bands = self.blocks[block].clone();
        let count = self.tiles.within(&bands);
        let mut inputs = Components::new(count, self.inputs());
        let mut products = Components::new(count, self.outputs());
        self.gather.run(&self.tiles, bands.clone(), inputs.split());
        let needed = self.tiles.needed(&bands);
        for (component, product) in products.split().into_iter().enumerate() {
            self.multiply(component, &needed, &inputs, product);
        }
        self.scatter(&products.rows(0..count), bands, y);
    }

    /// A few blocks at a time: all are transformed, then each product is made for all of them, so
    /// that the kernels are read once.
    fn staged(&self) -> Vec<f32> {
        let blocks = &self.blocks;
        let mut y = zeros(self.tiles.output.len());
        let mut slices = self.tiles.cut(&mut y, blocks);
        let group = (STAGED_TILES / self.tiles.within(&blocks[0])).max(1);
        for (blocks, slices) in blocks.chunks(group).zip(slices.chunks_mut(group)) {
            let inputs = self.gather.run_all(&self.tiles, blocks);
            let first = blocks[0].start;
            let row = |band: usize| self.tiles.within(&(first..band));
            let bands = first..blocks[blocks.len() - 1].end;
            let needed = self.tiles.needed(&bands);
            let mut products = Components::new(self.tiles.within(&bands), self.outputs());
            products.par_split().enumerate().for_each(|(component, product)| {
                self.multiply(component, &needed, &inputs, product);
            });
            blocks.par_iter().zip(slices).for_each(|(bands, y)| {
                let rows = row(bands.start)..row(bands.end);
                self.scatter(&products.rows(rows), bands.clone(), y);
            });
        }
        y
    }

    fn scatter(&self, products: &[&[f32]; COMPONENTS], bands: Range<usize>, y: &mut [f32]) {
        let Self { tiles, rounds, .. } = self;
        run(best(), Scatter { products, tiles, bands, y, rounds: *rounds });
    }

    /// One product, for the tiles that need it.
    fn multiply(&self, component: usize, needed: &Needed, inputs: &Components, values: &mut [f32]) {
        let outputs = self.outputs();
        let slices = inputs.needed(component, needed);
        let starts: Vec<usize> = match needed.of(component) {
            Some(tiles) => tiles.iter().map(|tile| tile * outputs).collect(),
            None => (0..slices.len()).map(|tile| tile * outputs).collect(),
        };
        let out = Output { values, starts: &starts, write: Write::Replace, sums: Sums::Long };
        let mut rows = Rows { slices: &slices, taps: 1 };
        product(&mut rows, &self.kernels[component], out, &mut ());
    }
}

/// Writes the tiles of these bands into `y`, the bands' pixels; the products are, one component
/// after the other, (tiles, padded channels), anything where a tile does not need it.
struct Scatter<'a> {
    products: &'a [&'a [f32]; COMPONENTS],
    tiles: &'a Tiles,
    bands: Range<usize>,
    y: &'a mut [f32],
    /// To bf16.
    rounds: bool,
}

impl WithSimd for Scatter<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let image = self.tiles.output;
        let vectors = padded(image.c) / S::F32_LANES;
        let first_pixel = self.tiles.first_pixel(self.bands.start);
        let products = self.products.map(|values| S::as_simd_f32s(values).0);
        let mut workspace = transform::Output::workspace(simd);
        for tile in 0..self.tiles.within(&self.bands) {
            let place = self.tiles.place(&self.bands, tile);
            let pixel = (place.image * image.h + place.y) * image.w + place.x - first_pixel;
            let rows = TILE.min(image.h - place.y);
            let columns = TILE.min(image.w - place.x);
            for vector in 0..image.c.div_ceil(S::F32_LANES) {
                let at = tile * vectors + vector;
                let first = vector * S::F32_LANES;
                let y = &mut *self.y;
                transform::Output::tile(
                    simd,
                    place.size,
                    &mut workspace,
                    #[inline(always)]
                    |row, column| products[row * 6 + column][at],
                    #[inline(always)]
                    |row, values| {
                        if row >= rows {
                            return;
                        }
                        for (column, value) in values.into_iter().enumerate().take(columns) {
                            let pixel = pixel + row * image.w + column;
                            let value = if self.rounds { rounded(simd, value) } else { value };
                            let channels = &mut y[pixel * image.c..][..image.c][first..];
                            match S::as_mut_simd_f32s(channels).0.first_mut() {
                                Some(out) => *out = value,
                                None => simd.partial_store_f32s(channels, value),
                            }
                        }
                    },
                );
            }
        }
    }
}
