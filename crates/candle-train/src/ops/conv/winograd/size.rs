//! Tiles at the end of an image have fewer pixels, and need fewer of the 36 products.

use std::array::from_fn;

use super::tiles::TILE;

/// Output pixels of a tile along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Two,
    Three,
    Four,
}

impl Length {
    /// Of the tile that begins where an image has so many pixels left.
    pub(super) fn of(left: usize) -> Self {
        match left {
            0..=2 => Self::Two,
            3 => Self::Three,
            _ => Self::Four,
        }
    }

    /// Whether the values at this interpolation point are needed: 0, 1, -1, 2, -2 or infinity.
    pub(super) fn needs(self, point: usize) -> bool {
        match self {
            Self::Two => !matches!(point, 3 | 4),
            Self::Three => point != 4,
            Self::Four => true,
        }
    }
}

/// Of rows and of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TileSize {
    pub(super) rows: Length,
    pub(super) columns: Length,
}

impl TileSize {
    /// Of a tile inside of an image; kernels have no other.
    pub(super) const WHOLE: Self = Self { rows: Length::Four, columns: Length::Four };
}

/// Of all tiles of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sizes {
    /// Each counts as whole.
    Whole,
    /// Those at the end may have fewer pixels.
    Any,
}

/// Channels from which on the products that are left out take longer than transforms of more than
/// one kind.
const CHANNELS: usize = 32;

impl Sizes {
    /// Of images of so many rows, columns and channels.
    pub(super) fn of(sides: [usize; 2], channels: usize) -> Self {
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
    pub(super) fn by_all() -> Self {
        Self { tiles: from_fn(|_| from_fn(|_| None)) }
    }

    /// By tiles of these sizes.
    pub(super) fn by(sizes: &[TileSize]) -> Self {
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
