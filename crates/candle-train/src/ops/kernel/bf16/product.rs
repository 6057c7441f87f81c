//! The loops around the tiles, on one thread.

use std::ops::Range;

use super::instructions::Multiplier;
use super::panels::{Bf16Panels, CACHE_BLOCK, COLUMNS, Tiles};
use super::{LINES, Order};
use crate::ops::kernel::level::best;
use crate::ops::kernel::product::{Epilogue, Output, Packed, Write, finish};

/// Rows that are multiplied together: two tiles.
pub(in crate::ops::kernel) const STRIP: usize = 2 * LINES;
/// Rows per block at most: the values read of B serve them all.
pub(in crate::ops::kernel) const BLOCK_ROWS: usize = 6 * STRIP;

/// `kernel::product` with bf16 panels.
pub(in crate::ops::kernel) fn product<L: Packed>(
    left: &mut L,
    b: &Bf16Panels,
    mut out: Output<'_>,
    epilogue: &mut dyn Epilogue,
) {
    let rows = out.starts.len();
    let blocks = b.blocks();
    let multiplier = b.instructions.start();
    let mut a = Tiles::new(blocks.min(CACHE_BLOCK));
    let mut first_block = 0;
    loop {
        let block_range = first_block..blocks.min(first_block + CACHE_BLOCK);
        for first in (0..rows).step_by(STRIP) {
            let rows = first..rows.min(first + STRIP);
            pack(left, b, &rows, block_range.clone(), &mut a);
            let add = block_range.start > 0 || out.write == Write::Add;
            let a = (&a, left.order(b.instructions));
            multiply_strip(&multiplier, a, (b, block_range.clone()), &mut out, rows.clone(), add);
            if block_range.end == blocks {
                finish(best(), &mut out, b.columns, rows, epilogue);
            }
        }
        if block_range.end == blocks {
            return;
        }
        first_block = block_range.end;
    }
}

/// Packs these blocks of some rows of A.
fn pack<L: Packed>(
    left: &L,
    b: &Bf16Panels,
    rows: &Range<usize>,
    blocks: Range<usize>,
    a: &mut Tiles,
) {
    for (block, pair) in blocks.zip(a.pairs_mut()) {
        let (tap, depth) = b.block(block);
        for (half, tile) in pair.iter_mut().enumerate() {
            let first = (rows.start + half * LINES).min(rows.end);
            let rows = first..rows.end.min(first + LINES);
            left.pack(b.instructions, rows, (tap, depth.clone()), tile);
        }
    }
}

/// Some rows of the result, over all columns.
fn multiply_strip(
    multiplier: &Multiplier,
    (a, order): (&Tiles, Order),
    (b, blocks): (&Bf16Panels, Range<usize>),
    out: &mut Output<'_>,
    rows: Range<usize>,
    add: bool,
) {
    let a = &a.pairs()[..blocks.len()];
    let starts = &out.starts[rows.clone()];
    let stride = even_stride(starts);
    for panel in 0..b.count() {
        let columns = panel * COLUMNS..b.columns.min((panel + 1) * COLUMNS);
        let operands = ([a, b.panel(panel, blocks.clone())], order);
        if let Some(stride) = stride
            && columns.len() == COLUMNS
        {
            let c = &mut out.values[starts[0] + columns.start..];
            multiplier.multiply(operands, (c, stride), STRIP, add);
            continue;
        }
        let mut edge = EdgeBlock([0.0; STRIP * COLUMNS]);
        let places = starts.iter().map(|start| start + columns.start..start + columns.end);
        let lines = edge.0.as_chunks_mut::<COLUMNS>().0;
        if add {
            for (line, place) in lines.iter_mut().zip(places.clone()) {
                line[..place.len()].copy_from_slice(&out.values[place]);
            }
        }
        multiplier.multiply(operands, (&mut edge.0, COLUMNS), starts.len(), add);
        let lines = edge.0.as_chunks::<COLUMNS>().0;
        for (line, place) in lines.iter().zip(places) {
            let len = place.len();
            out.values[place].copy_from_slice(&line[..len]);
        }
    }
}

/// A piece of the result, for rows that do not lie evenly or are fewer.
#[repr(align(64))]
struct EdgeBlock([f32; STRIP * COLUMNS]);

/// The distance of whole strips' rows, if it is the same everywhere.
fn even_stride(starts: &[usize]) -> Option<usize> {
    let stride = starts.get(1)?.checked_sub(starts[0]).filter(|&stride| stride >= COLUMNS)?;
    let is_even = starts.windows(2).all(|pair| pair[1] == pair[0] + stride);
    (starts.len() == STRIP && is_even).then_some(stride)
}
