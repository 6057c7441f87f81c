//! Pixels -> transformed tiles, the left operand of the 36 products.

use std::marker::PhantomData;
use std::ops::Range;

use candle_core::DType;
use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::components::{Components, Pieces, padded};
use super::tiles::{Images, TILE, TilePosition, Tiles};
use super::transform::{Transform, rounded};
use crate::ops::element::{Element, Numbers};
use crate::ops::kernel::{best, run};
use crate::ops::simd::fetch;

/// Lanes of the widest vector.
const MAX_LANES: usize = 16;

/// Reads the `I` x `I` pixels of each tile, from `padding` above and left of its place, zeros
/// outside the image, and transforms them by `T`; rounded to bf16 before if it `rounds`.
pub(super) struct Gather<'a, const I: usize, T, E> {
    source: &'a [E],
    images: Images,
    padding: [usize; 2],
    zeros: Vec<E>,
    rounds: bool,
    transform: PhantomData<T>,
}

impl<'a, const I: usize, T: Transform<I, 6>, E: Element> Gather<'a, I, T, E> {
    pub(super) fn new(source: &'a [E], images: Images, padding: [usize; 2], rounds: bool) -> Self {
        assert_eq!(source.len(), images.len(), "images cover their values");
        let zeros = vec![E::default(); images.c];
        Self { source, images, padding, zeros, rounds, transform: PhantomData }
    }

    /// Writes each component of the tiles of these bands as (tiles, padded channels); those that
    /// a tile does not need become anything.
    pub(super) fn run(&self, tiles: &Tiles, bands: Range<usize>, transformed: Pieces<'_>) {
        run(best(), Run { gather: self, tiles, bands, transformed });
    }

    /// [`Gather::run`] for adjoining runs of bands, on all threads.
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
    fn pixels(&self, place: TilePosition) -> [[&[E]; I]; I] {
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

struct Run<'a, const I: usize, T, E> {
    gather: &'a Gather<'a, I, T, E>,
    tiles: &'a Tiles,
    bands: Range<usize>,
    transformed: Pieces<'a>,
}

impl<const I: usize, T: Transform<I, 6>, E: Element> WithSimd for Run<'_, I, T, E> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let channels = self.gather.images.c;
        let vectors = padded(channels) / S::F32_LANES;
        let mut transformed = self.transformed.map(|values| S::as_mut_simd_f32s(values).0);
        let mut workspace = T::workspace(simd);
        let rounds = self.gather.rounds;
        for tile in 0..self.tiles.within(&self.bands) {
            let place = self.tiles.place(&self.bands, tile);
            let pixels = self.gather.pixels(place);
            for vector in 0..vectors {
                let first = vector * S::F32_LANES;
                T::tile(
                    simd,
                    place.size,
                    &mut workspace,
                    #[inline(always)]
                    |row, column| {
                        let here = &pixels[row][column][first.min(channels)..];
                        // Pixels that only the next tile of the band reads.
                        if column + TILE >= I {
                            fetch(here, TILE * channels);
                        }
                        let values = first_vector(simd, here);
                        if E::DTYPE == DType::F32 && rounds {
                            rounded(simd, values)
                        } else {
                            values
                        }
                    },
                    #[inline(always)]
                    |row, values| {
                        for (column, value) in values.into_iter().enumerate() {
                            transformed[row * 6 + column][tile * vectors + vector] = value;
                        }
                    },
                );
            }
        }
    }
}

/// The first values, zeros beyond the last.
#[inline(always)]
fn first_vector<S: Simd, E: Element>(simd: S, values: &[E]) -> S::f32s {
    match E::known(values) {
        Numbers::F32(values) => match S::as_simd_f32s(values).0.first() {
            Some(whole) => *whole,
            None => simd.partial_load_f32s(values),
        },
        Numbers::Bf16(values) => {
            // Of a known length, a whole vector is one load.
            if let Some(values) = values.get(..S::F32_LANES) {
                let mut wide = [0f32; MAX_LANES];
                for lane in 0..S::F32_LANES {
                    wide[lane] = values[lane].wide();
                }
                return S::as_simd_f32s(&wide).0[0];
            }
            let mut wide = [0f32; MAX_LANES];
            for (wide, value) in wide.iter_mut().zip(values) {
                *wide = value.wide();
            }
            S::as_simd_f32s(&wide).0[0]
        }
    }
}
