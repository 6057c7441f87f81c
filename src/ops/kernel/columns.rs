//! A left operand that is read along its columns: the transposed A of a weight gradient.

use pulp::Simd;

use super::level::TILE_ROWS;
use super::product::{Chunk, Left};
use super::tile::{Tile, add_outer, zeros};
use crate::ops::scratch::Scratch;

/// Values of a cache line.
const LINE: usize = 16;
/// Panels from which on a tile's values are copied together before use.
const COPIED: usize = 2;

/// `A[i][p]` is `slices[p][i]`: row `i` of the product sums over all positions `p`.
pub(in crate::ops) struct Columns<'a> {
    slices: &'a [&'a [f32]],
    rows: usize,
    /// The chunk at hand, if it is copied: for each tile of rows, `TILE_ROWS` values per position.
    tiles: Option<Scratch>,
    /// From one tile to the next.
    stride: usize,
}

impl<'a> Columns<'a> {
    /// One slice of at least `rows` values per row of B.
    pub(in crate::ops) fn new(slices: &'a [&'a [f32]], rows: usize) -> Self {
        Self { slices, rows, tiles: None, stride: 0 }
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
        // An odd number of lines: what is written side by side does not meet in one set of the first-level cache.
        self.stride = ((slices.len() * TILE_ROWS).div_ceil(LINE) | 1) * LINE;
        // Given back before it is taken again.
        self.tiles = None;
        let tiles = self.tiles.insert(Scratch::new(self.rows.div_ceil(TILE_ROWS) * self.stride));
        for (p, slice) in slices.iter().enumerate() {
            let (whole, rest) = slice[..self.rows].as_chunks::<TILE_ROWS>();
            for (tile, values) in whole.iter().enumerate() {
                let at = tile * self.stride + p * TILE_ROWS;
                tiles[at..at + TILE_ROWS].copy_from_slice(values);
            }
            if !rest.is_empty() {
                let at = whole.len() * self.stride + p * TILE_ROWS;
                tiles[at..at + rest.len()].copy_from_slice(rest);
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
        let Some(tiles) = &self.tiles else {
            for (slice, b) in self.slices[chunk.depth.clone()].iter().zip(b) {
                let (a, _) = slice[row..row + M].as_chunks::<M>();
                add_outer(simd, &mut sums, &a[0], b);
            }
            return sums;
        };
        let len = chunk.depth.len() * TILE_ROWS;
        let tile = &tiles[row / TILE_ROWS * self.stride..][..len];
        // The last tile may be taken in several steps.
        let first = row % TILE_ROWS;
        for (a, b) in tile.as_chunks::<TILE_ROWS>().0.iter().zip(b) {
            let (a, _) = a[first..].as_chunks::<M>();
            add_outer(simd, &mut sums, &a[0], b);
        }
        sums
    }
}
