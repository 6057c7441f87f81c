//! Tiles at the end of an image have fewer pixels, and need fewer of the 36 products.

use std::array::from_fn;

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

/// The numbers of the tiles that need each component of the transformed values.
pub(super) struct Needed {
    /// Of each two of [`ALIKE`].
    tiles: [[Vec<usize>; ALIKE.len()]; ALIKE.len()],
}

/// Points that stand for those of the same [`Length`]s: of all, of three and four, of four.
const ALIKE: [usize; 3] = [5, 3, 4];

impl Needed {
    /// Of tiles of these sizes.
    pub(super) fn by(sizes: &[TileSize]) -> Self {
        let of = |row: usize, column: usize| {
            let needing = sizes.iter().enumerate().filter(|(_, size)| {
                size.rows.needs(ALIKE[row]) && size.columns.needs(ALIKE[column])
            });
            needing.map(|(tile, _)| tile).collect()
        };
        Self { tiles: from_fn(|row| from_fn(|column| of(row, column))) }
    }

    /// The tiles that need a component, in their order.
    pub(super) fn of(&self, component: usize) -> &[usize] {
        let alike = |point: usize| ALIKE.iter().position(|&other| other == point).unwrap_or(0);
        &self.tiles[alike(component / 6)][alike(component % 6)]
    }
}
