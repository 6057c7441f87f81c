//! How an image is cut into tiles of 4x4 output pixels, and fewer where it ends, and tiles into
//! blocks that one thread works on.

use std::ops::Range;

use super::size::{Length, Needed, Sizes, TileSize};

/// Rows and columns of an output tile.
pub(super) const TILE: usize = 4;

/// A batch of images, channels last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Images {
    pub(super) n: usize,
    pub(super) h: usize,
    pub(super) w: usize,
    pub(super) c: usize,
}

impl Images {
    pub(super) fn len(&self) -> usize {
        self.n * self.h * self.w * self.c
    }
}

/// The tiles of a batch of output images, numbered over (image, row, column). A band is a row of
/// tiles of one image; bands follow each other in memory, so that a run of bands is one slice of
/// the output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    pub(super) output: Images,
    sizes: Sizes,
    /// Tiles per band.
    columns: usize,
    /// Bands per image.
    rows: usize,
}

/// Top left output pixel of a tile, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TilePosition {
    pub(super) image: usize,
    pub(super) y: usize,
    pub(super) x: usize,
    pub(super) size: TileSize,
}

impl Tiles {
    pub(super) fn new(output: Images) -> Self {
        let rows = output.h.div_ceil(TILE);
        let columns = output.w.div_ceil(TILE);
        Self { output, sizes: Sizes::of([output.h, output.w], output.c), columns, rows }
    }

    /// Tiles of a run of bands.
    pub(super) fn within(&self, bands: &Range<usize>) -> usize {
        bands.len() * self.columns
    }

    fn bands(&self) -> usize {
        self.output.n * self.rows
    }

    /// Runs of bands of about `tiles` tiles each.
    pub(super) fn blocks(&self, tiles: usize) -> Vec<Range<usize>> {
        let bands = (tiles / self.columns).max(1);
        let blocks = self.bands().div_ceil(bands);
        // Of equal size, so that the last is not a small rest.
        (0..blocks)
            .map(|block| self.bands() * block / blocks..self.bands() * (block + 1) / blocks)
            .collect()
    }

    /// Blocks as large as these at most, which begin at multiples of `pixels`; `None` if there are
    /// none.
    pub(super) fn aligned(
        &self,
        blocks: &[Range<usize>],
        pixels: usize,
    ) -> Option<Vec<Range<usize>>> {
        let band = TILE * self.output.w;
        // Bands of an image's end may have fewer rows.
        let step = (1..=blocks.iter().map(Range::len).max()?).rev().find(|bands| {
            self.output.h.is_multiple_of(TILE) && (bands * band).is_multiple_of(pixels)
        })?;
        let bands = self.bands();
        Some((0..bands).step_by(step).map(|start| start..bands.min(start + step)).collect())
    }

    /// Where the tile `number` of these bands is.
    #[inline(always)]
    pub(super) fn place(&self, bands: &Range<usize>, number: usize) -> TilePosition {
        let band = bands.start + number / self.columns;
        let y = band % self.rows * TILE;
        let x = number % self.columns * TILE;
        let size = match self.sizes {
            Sizes::Whole => TileSize::WHOLE,
            Sizes::Any => TileSize {
                rows: Length::of(self.output.h - y),
                columns: Length::of(self.output.w - x),
            },
        };
        TilePosition { image: band / self.rows, y, x, size }
    }

    /// Which of the tiles of these bands need which components.
    pub(super) fn needed(&self, bands: &Range<usize>) -> Needed {
        let size = |number| self.place(bands, number).size;
        match self.sizes {
            Sizes::Whole => Needed::by_all(),
            Sizes::Any => Needed::by(&(0..self.within(bands)).map(size).collect::<Vec<_>>()),
        }
    }

    /// Where the pixels of `band` begin, in output pixels.
    pub(super) fn first_pixel(&self, band: usize) -> usize {
        let Images { h, w, .. } = self.output;
        (band / self.rows * h + (band % self.rows * TILE).min(h)) * w
    }

    /// Output values of a run of bands.
    pub(super) fn values(&self, bands: &Range<usize>) -> usize {
        (self.first_pixel(bands.end) - self.first_pixel(bands.start)) * self.output.c
    }

    /// Cuts `y` into the slices of these adjoining runs of bands.
    pub(super) fn cut<'a>(
        &self,
        mut y: &'a mut [f32],
        blocks: &[Range<usize>],
    ) -> Vec<&'a mut [f32]> {
        let mut slices = Vec::with_capacity(blocks.len());
        for bands in blocks {
            let (slice, rest) = y.split_at_mut(self.values(bands));
            slices.push(slice);
            y = rest;
        }
        slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_blocks_hold_every_band_and_begin_at_multiples() {
        for (n, h, w, pixels, expected) in [
            (6, 56, 56, 128, Some(8)),
            (6, 32, 32, 128, Some(8)),
            (6, 28, 28, 128, Some(8)),
            (6, 14, 14, 128, None),
            (1, 4, 4, 128, None),
        ] {
            let tiles = Tiles::new(Images { n, h, w, c: 2 });
            let blocks = tiles.blocks(9 * tiles.columns);
            let aligned = tiles.aligned(&blocks, pixels);
            let Some(aligned) = aligned else {
                assert_eq!(expected, None, "{w}");
                continue;
            };
            assert_eq!(aligned.first().map(Range::len), expected, "{w}");
            let starts = aligned.iter().map(|bands| tiles.first_pixel(bands.start));
            assert!(starts.into_iter().all(|start| start.is_multiple_of(pixels)));
            let bands: Vec<usize> = aligned.into_iter().flatten().collect();
            assert!(bands.into_iter().eq(0..tiles.bands()));
        }
    }

    #[test]
    fn tiles_at_the_end_of_an_image_need_fewer_components() {
        let tiles = Tiles::new(Images { n: 1, h: 7, w: 6, c: 32 });
        let needed = tiles.needed(&(0..tiles.bands()));
        // Four and three rows of pixels, four and two columns.
        let expected = |component: usize| match (component / 6, component % 6) {
            (4, 3 | 4) => Some(vec![0]),
            (4, _) => Some(vec![0, 1]),
            (_, 3 | 4) => Some(vec![0, 2]),
            (3, _) => Some(vec![0, 1, 2, 3]),
            _ => None,
        };
        for component in 0..36 {
            assert_eq!(needed.of(component).map(<[_]>::to_vec), expected(component), "{component}");
        }
    }

    #[test]
    fn blocks_are_adjoining_slices_of_the_output_and_hold_every_tile_once() {
        for (n, h, w) in [(1, 1, 1), (3, 4, 4), (2, 7, 9), (5, 8, 3), (2, 33, 17)] {
            let tiles = Tiles::new(Images { n, h, w, c: 2 });
            for size in [1, 4, 50] {
                let blocks = tiles.blocks(size);
                let mut y = vec![0.0; n * h * w * 2];
                let slices = tiles.cut(&mut y, &blocks);
                assert_eq!(slices.iter().map(|slice| slice.len()).sum::<usize>(), n * h * w * 2);
                let of = |bands: &Range<usize>| -> Vec<TilePosition> {
                    (0..tiles.within(bands)).map(|number| tiles.place(bands, number)).collect()
                };
                let places: Vec<TilePosition> = blocks.iter().flat_map(of).collect();
                assert_eq!(places.len(), n * h.div_ceil(4) * w.div_ceil(4));
                assert_eq!(places, of(&(0..tiles.bands())));
                for (bands, slice) in blocks.iter().zip(&slices) {
                    let first = tiles.place(bands, 0);
                    assert_eq!(tiles.first_pixel(bands.start), (first.image * h + first.y) * w);
                    assert!(!slice.is_empty());
                }
            }
        }
    }
}
