//! The right operand, rounded and packed in panels of two tiles side by side.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::{DEPTH, Instructions, LINES, Tile, WORDS};
use crate::ops::kernel::panels::Source;
use crate::ops::scratch::Scratch;

/// Columns of a panel.
pub(super) const COLUMNS: usize = 2 * LINES;
/// Pairs of tiles from which on packing is worth several threads.
const PARALLEL: usize = 32;
/// Values of a cache line.
const CACHE_LINE: usize = 16;

/// Pairs of tiles in work memory, each row of a tile in a cache line of its own.
pub(super) struct Tiles {
    memory: Scratch,
    start: usize,
    count: usize,
}

impl Tiles {
    /// `count` pairs, whatever they are.
    pub(super) fn new(count: usize) -> Self {
        let memory = Scratch::new(count * 2 * WORDS + CACHE_LINE);
        let start = memory.as_ptr().align_offset(size_of::<[f32; CACHE_LINE]>()).min(CACHE_LINE);
        Self { memory, start, count }
    }

    pub(super) fn pairs(&self) -> &[[Tile; 2]] {
        bytemuck::cast_slice(&self.memory[self.start..][..self.count * 2 * WORDS])
    }

    pub(super) fn pairs_mut(&mut self) -> &mut [[Tile; 2]] {
        bytemuck::cast_slice_mut(&mut self.memory[self.start..][..self.count * 2 * WORDS])
    }
}

/// B, (taps, depth, columns): a panel is (taps, blocks of the depth), each of two tiles; zeros
/// beyond the last column and the end of the depth.
#[derive(Clone)]
pub(in crate::ops) struct Bf16Panels {
    tiles: Arc<Tiles>,
    pub(in crate::ops::kernel) instructions: Instructions,
    pub(in crate::ops::kernel) taps: usize,
    pub(in crate::ops::kernel) depth: usize,
    pub(in crate::ops::kernel) columns: usize,
}

impl Bf16Panels {
    /// As `Panels::pack`.
    pub(in crate::ops::kernel) fn pack(
        instructions: Instructions,
        source: Source<'_>,
        taps: &[usize],
        depth: usize,
        columns: usize,
    ) -> Self {
        let blocks = depth.div_ceil(DEPTH);
        let count = columns.div_ceil(COLUMNS) * taps.len() * blocks;
        let mut tiles = Tiles::new(count);
        let pack = |(i, pair): (usize, &mut [Tile; 2])| {
            let (panel, tap, block) =
                (i / blocks / taps.len(), i / blocks % taps.len(), i % blocks);
            let rows = block * DEPTH..depth.min((block + 1) * DEPTH);
            for (half, tile) in pair.iter_mut().enumerate() {
                let first = (panel * COLUMNS + half * LINES).min(columns);
                let columns = first..columns.min(first + LINES);
                let start = taps[tap] * source.tap;
                pack_tile(instructions, source, start, [rows.clone(), columns], tile);
            }
        };
        if count < PARALLEL {
            tiles.pairs_mut().iter_mut().enumerate().for_each(pack);
        } else {
            let pairs = tiles.pairs_mut().par_iter_mut().enumerate();
            pairs.with_min_len(PARALLEL / 4).for_each(pack);
        }
        let tiles = Arc::new(tiles);
        Self { tiles, instructions, taps: taps.len(), depth, columns }
    }

    /// Number of panels.
    pub(super) fn count(&self) -> usize {
        self.columns.div_ceil(COLUMNS)
    }

    /// Blocks of the inner dimension: those of the depth for each tap.
    pub(super) fn blocks(&self) -> usize {
        self.taps * self.depth.div_ceil(DEPTH)
    }

    /// The tap of a block, and which part of the depth it is.
    pub(super) fn block(&self, index: usize) -> (usize, Range<usize>) {
        let per_tap = self.depth.div_ceil(DEPTH);
        let first = index % per_tap * DEPTH;
        (index / per_tap, first..self.depth.min(first + DEPTH))
    }

    /// These blocks of a panel.
    pub(super) fn panel(&self, panel: usize, blocks: Range<usize>) -> &[[Tile; 2]] {
        let start = panel * self.blocks();
        &self.tiles.pairs()[start + blocks.start..start + blocks.end]
    }
}

/// Packs rows and columns of the tap that begins at `start`.
fn pack_tile(
    instructions: Instructions,
    source: Source<'_>,
    start: usize,
    [rows, columns]: [Range<usize>; 2],
    tile: &mut Tile,
) {
    let Source { values, row, column, .. } = source;
    let at = start + rows.start * row + columns.start * column;
    let shape @ [lines, depth] = [columns.len(), rows.len()];
    if column == 1 {
        return instructions.pack_across(tile, shape, true, |k| &values[at + k * row..][..lines]);
    }
    if row == 1 {
        return instructions.pack_lines(tile, shape, true, |i| &values[at + i * column..][..depth]);
    }
    let mut near = [[0.0; DEPTH]; LINES];
    for (i, line) in near.iter_mut().enumerate().take(lines) {
        for (k, value) in line.iter_mut().enumerate().take(depth) {
            *value = values[at + i * column + k * row];
        }
    }
    instructions.pack_lines(tile, shape, true, |i| &near[i]);
}
