//! Cuts an image into tiles of 4x4 output pixels, and tiles into blocks that one thread works on.
//!
//! Tiles at the end of an image have fewer pixels, and need fewer of the 36 products.

use std::array::from_fn;
use std::ops::Range;

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

    /// Position of the tile `number` of these bands.
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

    /// The tiles of these bands that need each component.
    pub(super) fn needed(&self, bands: &Range<usize>) -> Needed {
        let size = |number| self.place(bands, number).size;
        match self.sizes {
            Sizes::Whole => Needed::by_all(),
            Sizes::Any => Needed::by(&(0..self.within(bands)).map(size).collect::<Vec<_>>()),
        }
    }

    /// First output pixel of `band`.
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

/// Output pixels of a tile along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Two,
    Three,
    Four,
}

impl Length {
    /// Length of the tile that begins where an image has so many pixels left.
    pub(super) fn of(left: usize) -> Self {
        match left {
            0..=2 => Self::Two,
            3 => Self::Three,
            _ => Self::Four,
        }
    }

    /// True if the values at this interpolation point are needed: 0, 1, -1, 2, -2 or infinity.
    pub(super) fn needs(self, point: usize) -> bool {
        match self {
            Self::Two => !matches!(point, 3 | 4),
            Self::Three => point != 4,
            Self::Four => true,
        }
    }
}

/// Size of a tile in rows and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileSize {
    pub(super) rows: Length,
    pub(super) columns: Length,
}

impl TileSize {
    /// Size of a tile inside of an image; kernels have no other.
    pub(super) const WHOLE: Self = Self { rows: Length::Four, columns: Length::Four };
}

/// Sizes of the tiles of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sizes {
    /// Every tile counts as whole.
    Whole,
    /// Tiles at the end may have fewer pixels.
    Any,
}

/// Channels from which on the products that are left out take longer than transforms of more than
/// one kind.
const CHANNELS: usize = 32;

impl Sizes {
    /// Sizes in images of so many rows, columns and channels.
    fn of(sides: [usize; 2], channels: usize) -> Self {
        let are_whole = sides.iter().all(|side| side.is_multiple_of(TILE));
        if are_whole || channels < CHANNELS { Self::Whole } else { Self::Any }
    }
}

/// The numbers of the tiles that need each component of the transformed values.
pub(super) struct Needed {
    /// By the places of a component's two points in [`PARTIAL`], the last for all other points;
    /// `None` if all tiles need it.
    tiles: [[Option<Vec<usize>>; PARTIAL.len() + 1]; PARTIAL.len() + 1],
}

/// Points that tiles of some [`Length`] do not need.
const PARTIAL: [usize; 2] = [3, 4];

impl Needed {
    /// By all tiles.
    fn by_all() -> Self {
        Self { tiles: from_fn(|_| from_fn(|_| None)) }
    }

    /// By tiles of these sizes.
    fn by(sizes: &[TileSize]) -> Self {
        let needs = |length: Length, partial: usize| {
            PARTIAL.get(partial).is_none_or(|&point| length.needs(point))
        };
        let of = |row: usize, column: usize| {
            let needing = |size: TileSize| needs(size.rows, row) && needs(size.columns, column);
            let tiles = || (0..sizes.len()).filter(|&tile| needing(sizes[tile])).collect();
            (row.min(column) < PARTIAL.len()).then(tiles)
        };
        Self { tiles: from_fn(|row| from_fn(|column| of(row, column))) }
    }

    /// The tiles that need a component, in their order; `None` if all do.
    pub(super) fn of(&self, component: usize) -> Option<&[usize]> {
        let partial = |point: usize| {
            PARTIAL.iter().position(|&partial| partial == point).unwrap_or(PARTIAL.len())
        };
        self.tiles[partial(component / 6)][partial(component % 6)].as_deref()
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
