//! A left operand that is read along its columns: the transposed A of a weight gradient.

use pulp::Simd;

use super::level::TILE_ROWS;
use super::product::{Chunk, Left};
use super::tile::{Tile, add_outer, zeros};

/// Panels from which on a tile's values are copied together before use.
const COPIED: usize = 3;

/// `A[i][p]` is `slices[p][i]`: row `i` of the product sums over all positions `p`.
pub(in crate::ops) struct Columns<'a> {
    slices: &'a [&'a [f32]],
    rows: usize,
    /// The chunk at hand: for each tile of rows, `TILE_ROWS` values per position. Empty if not copied.
    tiles: Vec<f32>,
}

impl<'a> Columns<'a> {
    /// One slice of at least `rows` values per row of B.
    pub(in crate::ops) fn new(slices: &'a [&'a [f32]], rows: usize) -> Self {
        Self { slices, rows, tiles: Vec::new() }
    }
}

impl Left for Columns<'_> {
    /// Copies the chunk if it is used often, so that a tile reads it from front to back.
    #[inline(always)]
    fn prepare(&mut self, chunk: &Chunk, panels: usize) {
        let slices = &self.slices[chunk.depth.clone()];
        if panels < COPIED {
            return;
        }
        self.tiles.resize(self.rows.div_ceil(TILE_ROWS) * slices.len() * TILE_ROWS, 0.0);
        for (p, slice) in slices.iter().enumerate() {
            let (whole, rest) = slice[..self.rows].as_chunks::<TILE_ROWS>();
            for (tile, values) in whole.iter().enumerate() {
                let at = (tile * slices.len() + p) * TILE_ROWS;
                self.tiles[at..at + TILE_ROWS].copy_from_slice(values);
            }
            if !rest.is_empty() {
                let at = (whole.len() * slices.len() + p) * TILE_ROWS;
                self.tiles[at..at + rest.len()].copy_from_slice(rest);
            }
        }
    }

    #[inline(always)]
    fn sums<S: Simd, const M: usize, const V: usize>(
        &self,
        simd: S,
        row: usize,
        chunk: &Chunk,
        b: &[[S::f32s; V]],
    ) -> Tile<S, M, V> {
        let mut sums = zeros::<S, M, V>(simd);
        if self.tiles.is_empty() {
            for (slice, b) in self.slices[chunk.depth.clone()].iter().zip(b) {
                let (a, _) = slice[row..row + M].as_chunks::<M>();
                add_outer(simd, &mut sums, &a[0], b);
            }
            return sums;
        }
        let len = chunk.depth.len() * TILE_ROWS;
        let tile = &self.tiles[row / TILE_ROWS * len..][..len];
        // The last tile may be taken in several steps.
        let first = row % TILE_ROWS;
        for (a, b) in tile.as_chunks::<TILE_ROWS>().0.iter().zip(b) {
            let (a, _) = a[first..].as_chunks::<M>();
            add_outer(simd, &mut sums, &a[0], b);
        }
        sums
    }
}
