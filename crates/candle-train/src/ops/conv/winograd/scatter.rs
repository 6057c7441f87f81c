//! Products -> output pixels.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::components::{COMPONENTS, padded};
use super::tiles::{TILE, Tiles};
use super::transform::{Output, Transform, rounded};

/// Writes the tiles of these bands into `y`, the bands' pixels; the products are, one component
/// after the other, (tiles, padded channels), anything where a tile does not need it.
pub(super) struct Scatter<'a> {
    pub(super) products: &'a [&'a [f32]; COMPONENTS],
    pub(super) tiles: &'a Tiles,
    pub(super) bands: Range<usize>,
    pub(super) y: &'a mut [f32],
    /// To bf16.
    pub(super) rounds: bool,
}

impl WithSimd for Scatter<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let image = self.tiles.output;
        let vectors = padded(image.c) / S::F32_LANES;
        let first_pixel = self.tiles.first_pixel(self.bands.start);
        let products = self.products.map(|values| S::as_simd_f32s(values).0);
        let mut room = Output::room(simd);
        for tile in 0..self.tiles.within(&self.bands) {
            let place = self.tiles.place(&self.bands, tile);
            let pixel = (place.image * image.h + place.y) * image.w + place.x - first_pixel;
            let rows = TILE.min(image.h - place.y);
            let columns = TILE.min(image.w - place.x);
            for vector in 0..image.c.div_ceil(S::F32_LANES) {
                let at = tile * vectors + vector;
                let first = vector * S::F32_LANES;
                let y = &mut *self.y;
                Output::tile(
                    simd,
                    place.size,
                    &mut room,
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
