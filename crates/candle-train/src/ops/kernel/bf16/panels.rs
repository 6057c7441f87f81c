//! The right operand, rounded and packed in panels of two tiles side by side.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::{DEPTH, Instructions, LINES, Order, Tile, WORDS};
use crate::ops::element::Element;
use crate::ops::kernel::panels::Source;
use crate::ops::scratch::Scratch;

/// Columns of a panel.
pub(super) const COLUMNS: usize = 2 * LINES;
/// Blocks of the inner dimension that pass together: a strip of A stays in the first-level cache,
/// and of B, 512 rows in the second-level cache.
pub(super) const CACHE_BLOCK: usize = 512 / DEPTH;
/// Pairs of tiles from which on packing is worth several threads.
const PARALLEL: usize = 32;
/// Panels that one thread packs together: 1 KiB of each row.
const GROUP: usize = 8;
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

/// B, (taps, depth, columns), in blocks of the inner dimension, (taps, parts of the depth). Those
/// that pass together lie together, panel after panel: a panel is a pair of tiles for each block,
/// with zeros beyond the last column and the end of the depth.
#[derive(Clone)]
pub(in crate::ops) struct Bf16Panels {
    tiles: Arc<Tiles>,
    pub(in crate::ops::kernel) instructions: Instructions,
    pub(in crate::ops::kernel) taps: usize,
    pub(in crate::ops::kernel) depth: usize,
    pub(in crate::ops::kernel) columns: usize,
}

impl Bf16Panels {
    /// Packs `source`, rounded to bf16; the arguments are those of `Panels::pack`.
    pub(in crate::ops::kernel) fn pack<E: Element>(
        instructions: Instructions,
        source: Source<'_, E>,
        taps: &[usize],
        depth: usize,
        columns: usize,
    ) -> Self {
        let blocks = taps.len() * depth.div_ceil(DEPTH);
        let count = columns.div_ceil(COLUMNS);
        let mut tiles = Tiles::new(count * blocks);
        let pack = |block: usize, panel: usize, pair: &mut [Tile; 2]| {
            let (tap, rows) = place(block, depth);
            for (half, tile) in pair.iter_mut().enumerate() {
                let first = (panel * COLUMNS + half * LINES).min(columns);
                let columns = first..columns.min(first + LINES);
                let start = taps[tap] * source.tap;
                pack_tile(instructions, source, start, [rows.clone(), columns], tile);
            }
        };
        // Read as B lies in memory: a few of its rows, or a few of its columns, after the others.
        let by_rows = source.column == 1;
        let pack_group = |Group { first, block_range, pairs }: Group<'_>| {
            let deep = block_range.len();
            let wide = pairs.len() / block_range.len();
            for i in 0..pairs.len() {
                let (block, panel) =
                    if by_rows { (i / wide, i % wide) } else { (i % deep, i / deep) };
                pack(block_range.start + block, first + panel, &mut pairs[panel * deep + block]);
            }
        };
        let groups = Group::all(tiles.pairs_mut(), blocks, count);
        if count * blocks < PARALLEL {
            groups.into_iter().for_each(pack_group);
        } else {
            groups.into_par_iter().with_max_len(1).for_each(pack_group);
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
        place(index, self.depth)
    }

    /// Blocks of a panel that pass together.
    pub(super) fn panel(&self, panel: usize, block_range: Range<usize>) -> &[[Tile; 2]] {
        let start = block_range.start * self.count() + panel * block_range.len();
        &self.tiles.pairs()[start..start + block_range.len()]
    }
}

/// The tap of a block of the inner dimension, and which part of the depth it is.
fn place(block: usize, depth: usize) -> (usize, Range<usize>) {
    let per_tap = depth.div_ceil(DEPTH);
    let first = block % per_tap * DEPTH;
    (block / per_tap, first..depth.min(first + DEPTH))
}

/// Work of one thread: some panels over the blocks that pass together.
struct Group<'a> {
    /// The first panel.
    first: usize,
    /// The blocks.
    block_range: Range<usize>,
    pairs: &'a mut [[Tile; 2]],
}

impl<'a> Group<'a> {
    /// All pairs of so many blocks and panels.
    fn all(pairs: &'a mut [[Tile; 2]], blocks: usize, panels: usize) -> Vec<Self> {
        let mut groups = Vec::new();
        for (i, pairs) in pairs.chunks_mut((CACHE_BLOCK * panels).max(1)).enumerate() {
            let block_range = i * CACHE_BLOCK..blocks.min((i + 1) * CACHE_BLOCK);
            for (group, pairs) in pairs.chunks_mut(block_range.len() * GROUP).enumerate() {
                groups.push(Self { first: group * GROUP, block_range: block_range.clone(), pairs });
            }
        }
        groups
    }
}

/// Packs rows and columns of the tap that begins at `start`.
fn pack_tile<E: Element>(
    instructions: Instructions,
    source: Source<'_, E>,
    start: usize,
    [rows, columns]: [Range<usize>; 2],
    tile: &mut Tile,
) {
    let Source { values, row, column, .. } = source;
    let at = start + rows.start * row + columns.start * column;
    let shape @ [lines, depth] = [columns.len(), rows.len()];
    if column == 1 {
        return instructions
            .pack_across(tile, shape, Order::Pairs, |k| &values[at + k * row..][..lines]);
    }
    if row == 1 {
        return instructions
            .pack_lines(tile, shape, Order::Pairs, |i| &values[at + i * column..][..depth]);
    }
    let mut gathered = [[E::default(); DEPTH]; LINES];
    for (i, line) in gathered.iter_mut().enumerate().take(lines) {
        for (k, value) in line.iter_mut().enumerate().take(depth) {
            *value = values[at + i * column + k * row];
        }
    }
    instructions.pack_lines(tile, shape, Order::Pairs, |i| &gathered[i]);
}
