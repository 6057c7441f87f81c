//! Pixels -> transformed tiles, the left operand of the 36 products.

use std::marker::PhantomData;
use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::components::{Components, Pieces, padded};
use super::tiles::{Images, TILE, TilePosition, Tiles};
use super::transform::{Transform, rounded};
use crate::ops::kernel::{best, run};
use crate::ops::simd::fetch;

/// Reads the `I` x `I` pixels of each tile, from `padding` above and left of its place, zeros
/// outside the image, and transforms them by `T`; rounded to bf16 before if it `rounds`.
pub(super) struct Gather<'a, const I: usize, T> {
    source: &'a [f32],
    images: Images,
    padding: [usize; 2],
    zeros: Vec<f32>,
    rounds: bool,
    transform: PhantomData<T>,
}

impl<'a, const I: usize, T: Transform<I, 6>> Gather<'a, I, T> {
    pub(super) fn new(
        source: &'a [f32],
        images: Images,
        padding: [usize; 2],
        rounds: bool,
    ) -> Self {
        assert_eq!(source.len(), images.len(), "images cover their values");
        let zeros = vec![0.0; images.c];
        Self { source, images, padding, zeros, rounds, transform: PhantomData }
    }

    /// Writes each component of the tiles of these bands as (tiles, padded channels).
    pub(super) fn run(&self, tiles: &Tiles, bands: Range<usize>, transformed: Pieces<'_>) {
        run(best(), Run { gather: self, tiles, bands, transformed });
    }

    /// The same for adjoining runs of bands, on all threads.
    pub(super) fn run_all(&self, tiles: &Tiles, blocks: &[Range<usize>]) -> Components {
        let first = blocks.first().map_or(0, |bands| bands.start);
        let place = |band: usize| tiles.within(&(first..band));
        let rows: Vec<Range<usize>> =
            blocks.iter().map(|bands| place(bands.start)..place(bands.end)).collect();
        let count = rows.last().map_or(0, |rows| rows.end);
        let mut transformed = Components::new(count, self.images.c);
        transformed.split_at(&rows).into_par_iter().zip(blocks).for_each(|(pieces, bands)| {
            self.run(tiles, bands.clone(), pieces);
        });
        transformed
    }

    pub(super) fn images(&self) -> Images {
        self.images
    }

    pub(super) fn channels(&self) -> usize {
        self.images.c
    }

    /// The channels of each pixel of a tile.
    #[inline(always)]
    fn pixels(&self, place: TilePosition) -> [[&[f32]; I]; I] {
        let Images { h, w, c, .. } = self.images;
        let mut pixels = [[&self.zeros[..]; I]; I];
        for (row, line) in pixels.iter_mut().enumerate() {
            for (column, pixel) in line.iter_mut().enumerate() {
                // Above and left of the image the numbers wrap, and so lie outside of it as well.
                let y = (place.y + row).wrapping_sub(self.padding[0]);
                let x = (place.x + column).wrapping_sub(self.padding[1]);
                if y < h && x < w {
                    *pixel = &self.source[((place.image * h + y) * w + x) * c..][..c];
                }
            }
        }
        pixels
    }
}

struct Run<'a, const I: usize, T> {
    gather: &'a Gather<'a, I, T>,
    tiles: &'a Tiles,
    bands: Range<usize>,
    transformed: Pieces<'a>,
}

impl<const I: usize, T: Transform<I, 6>> WithSimd for Run<'_, I, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let channels = self.gather.images.c;
        let vectors = padded(channels) / S::F32_LANES;
        let transformed = self.transformed.map(|values| S::as_mut_simd_f32s(values).0);
        for tile in 0..self.tiles.within(&self.bands) {
            let pixels = self.gather.pixels(self.tiles.place(&self.bands, tile));
            for vector in 0..vectors {
                let first = vector * S::F32_LANES;
                let mut values = [[simd.splat_f32s(0.0); I]; I];
                if first + S::F32_LANES <= channels {
                    for row in 0..I {
                        for column in 0..I {
                            let here = &pixels[row][column][first..];
                            values[row][column] = S::as_simd_f32s(here).0[0];
                            // What only the next tile of the band reads.
                            if column + TILE >= I {
                                fetch(here, TILE * channels);
                            }
                        }
                    }
                } else {
                    for row in 0..I {
                        for column in 0..I {
                            let rest = &pixels[row][column][first.min(channels)..];
                            values[row][column] = simd.partial_load_f32s(rest);
                        }
                    }
                }
                if self.gather.rounds {
                    for row in &mut values {
                        for value in row {
                            *value = rounded(simd, *value);
                        }
                    }
                }
                let values = T::tile(simd, values);
                for row in 0..6 {
                    for column in 0..6 {
                        transformed[row * 6 + column][tile * vectors + vector] =
                            values[row][column];
                    }
                }
            }
        }
    }
}
