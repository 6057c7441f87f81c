//! The loops around the register tiles, on one thread.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::bf16::{self, Instructions, Order, Tile as Bf16Tile};
use super::level::{TILE_ROWS, run};
use super::panels::{F32Panels, Panel};
use super::right::Panels;
use super::tile::{Tile, write_row, write_whole_rows};

/// Values of A that stay in the first-level cache while all panels of B pass by.
const CACHE_BLOCK: usize = 3 << 10;

/// Treatment of the values that are already in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Write {
    /// out = a b
    Replace,
    /// out += a b
    Add,
}

/// Largest number of products that are summed in a register before the sum is added to the output.
///
/// Fixed here, so that bits do not depend on the sizes of a machine's caches. A depth beyond this
/// length is cut evenly; of several short taps, as many are taken together as fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Sums {
    /// 64: less rounding, where it decides whether a rectifier is open.
    Short = 64,
    /// 128: faster. A panel of B that is as deep stays in the first-level cache.
    Long = 128,
}

/// Finishes pieces of the result while they are in the cache: bias, activation, residual.
pub(in crate::ops) trait Epilogue {
    /// `values` are rows of the output, side by side, from row `first` on, with all products added.
    /// Each row is given once. `level` is the instruction set of the product.
    fn finish(&mut self, level: Arch, first: usize, values: &mut [f32]);

    /// True if there is anything to finish.
    fn is_wanted(&self) -> bool {
        true
    }
}

/// Nothing is done.
impl Epilogue for () {
    fn finish(&mut self, _: Arch, _: usize, _: &mut [f32]) {}

    fn is_wanted(&self) -> bool {
        false
    }
}

/// The left operand A of a product of bf16 numbers.
pub(in crate::ops) trait Packed {
    /// In which order [`Packed::pack`] leaves a tile.
    fn order(&self, _: Instructions) -> Order {
        Order::Lines
    }

    /// At most 16 rows of a part of one tap's depth, as a tile of bf16 numbers.
    fn pack(
        &self,
        instructions: Instructions,
        rows: Range<usize>,
        part: (usize, Range<usize>),
        tile: &mut Bf16Tile,
    );
}

/// The left operand A of any product.
pub(in crate::ops) trait Left: Packed {
    /// Called before the tiles of a chunk over `panels` panels.
    #[inline(always)]
    fn prepare(&mut self, _chunk: &Chunk, _panels: usize) {}

    /// The sums of rows `row..row + M` over a chunk. `b` are the chunk's rows of the panel.
    fn sums<S: Simd, const M: usize, const V: usize>(
        &self,
        simd: S,
        row: usize,
        chunk: &Chunk,
        b: &[[S::f32s; V]],
    ) -> Tile<S, M, V>;
}

/// A part of the inner dimension: some taps with their whole depth, or a part of the depth of one
/// tap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::ops) struct Chunk {
    pub(super) taps: Range<usize>,
    pub(super) depth: Range<usize>,
}

/// Cuts the inner dimension, (taps, depth), into chunks; at least one, which may be empty.
fn chunks(taps: usize, depth: usize, sums: Sums) -> Vec<Chunk> {
    let longest = sums as usize;
    if taps * depth <= longest {
        return vec![Chunk { taps: 0..taps, depth: 0..depth }];
    }
    if depth <= longest {
        let together = longest / depth;
        let first_taps = (0..taps).step_by(together);
        let chunk = |tap| Chunk { taps: tap..(tap + together).min(taps), depth: 0..depth };
        return first_taps.map(chunk).collect();
    }
    let pieces = depth.div_ceil(longest);
    let piece = |i| depth * i / pieces..depth * (i + 1) / pieces;
    let chunk = |(tap, i)| Chunk { taps: tap..tap + 1, depth: piece(i) };
    (0..taps).flat_map(|tap| (0..pieces).map(move |i| (tap, i))).map(chunk).collect()
}

/// Memory for the rows of a block of the result: row `i` begins at `values[starts[i]]`.
pub(in crate::ops) struct Output<'a> {
    /// All values that the block may write to.
    pub(in crate::ops) values: &'a mut [f32],
    /// First value of each row.
    pub(in crate::ops) starts: &'a [usize],
    /// Treatment of the values that are there.
    pub(in crate::ops) write: Write,
    /// The lengths of the chunks.
    pub(in crate::ops) sums: Sums,
}

/// Rows of `out` become or grow by `left b`; then `epilogue` sees them. On the calling thread:
/// blocks of some 100 rows keep their values of A and of the result in the second-level cache.
pub(in crate::ops) fn product<L: Left>(
    left: &mut L,
    b: &Panels,
    out: Output<'_>,
    epilogue: &mut dyn Epilogue,
) {
    match b {
        Panels::F32(b) => run(b.level, Product { left, b, out, epilogue }),
        Panels::Bf16(b) => bf16::product(left, b, out, epilogue),
    }
}

/// Gives `epilogue` these rows of the result, of `columns` values each, that no product is added to
/// any more.
pub(super) fn finish(
    level: Arch,
    out: &mut Output<'_>,
    columns: usize,
    rows: Range<usize>,
    epilogue: &mut dyn Epilogue,
) {
    if !epilogue.is_wanted() {
        return;
    }
    let starts = out.starts;
    let mut first = rows.start;
    while first < rows.end {
        let lies_beside = |&row: &usize| starts[row] == starts[first] + (row - first) * columns;
        let end = first + (first..rows.end).take_while(lies_beside).count();
        let values = &mut out.values[starts[first]..][..(end - first) * columns];
        epilogue.finish(level, first, values);
        first = end;
    }
}

struct Product<'a, 'e, L> {
    left: &'a mut L,
    b: &'a F32Panels,
    out: Output<'a>,
    // One compiled product serves all epilogues.
    epilogue: &'e mut dyn Epilogue,
}

impl<L: Left> WithSimd for Product<'_, '_, L> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let chunks = chunks(self.b.taps, self.b.depth, self.out.sums);
        let panels = self.b.count();
        let rows = self.out.starts.len();
        // The rows of a convolution come back at every tap: there the results stay in the cache,
        // panel after panel. In a long product, some rows of a chunk of A do.
        if self.b.taps > 1 {
            for panel in 0..panels {
                for (i, chunk) in chunks.iter().enumerate() {
                    self.left.prepare(chunk, 1);
                    self.panel(simd, panel, chunk, 0..rows, i == 0);
                }
            }
            return self.finish(0..rows);
        }
        for (i, chunk) in chunks.iter().enumerate() {
            self.left.prepare(chunk, panels);
            let cached_rows =
                (CACHE_BLOCK / chunk.depth.len().max(1)).max(1).next_multiple_of(TILE_ROWS);
            for first in (0..rows).step_by(cached_rows) {
                let rows = first..rows.min(first + cached_rows);
                for panel in 0..panels {
                    self.panel(simd, panel, chunk, rows.clone(), i == 0);
                }
                if i + 1 == chunks.len() {
                    self.finish(rows);
                }
            }
        }
    }
}

impl<L: Left> Product<'_, '_, L> {
    /// `rows` of one panel; `is_first`: no other chunk was added before.
    #[inline(always)]
    fn panel<S: Simd>(
        &mut self,
        simd: S,
        panel: usize,
        chunk: &Chunk,
        rows: Range<usize>,
        is_first: bool,
    ) {
        let panel = self.b.panel(panel);
        match panel.registers {
            1 => self.registers::<S, 1>(simd, &panel, chunk, rows, is_first),
            2 => self.registers::<S, 2>(simd, &panel, chunk, rows, is_first),
            3 if S::REGISTER_COUNT >= 32 => {
                self.registers::<S, 3>(simd, &panel, chunk, rows, is_first);
            }
            _ if S::REGISTER_COUNT >= 32 => {
                self.registers::<S, 4>(simd, &panel, chunk, rows, is_first);
            }
            _ => unreachable!("a panel is as wide as a tile"),
        }
    }

    /// `rows` of one panel of `V` registers.
    #[inline(always)]
    fn registers<S: Simd, const V: usize>(
        &mut self,
        simd: S,
        panel: &Panel<'_>,
        chunk: &Chunk,
        rows: Range<usize>,
        is_first: bool,
    ) {
        let (b, _) = S::as_simd_f32s(panel.values).0.as_chunks::<V>();
        let first = chunk.taps.start * self.b.depth + chunk.depth.start;
        let b = &b[first..first + chunk.taps.len() * chunk.depth.len()];
        let add = !is_first || self.out.write == Write::Add;
        let mut row = rows.start;
        while row < rows.end {
            // Few sizes of tiles: each is code for every width and instruction set.
            row += match rows.end - row {
                1 => self.tile::<S, 1, V>(simd, row, panel, chunk, b, add),
                2 | 3 => self.tile::<S, 2, V>(simd, row, panel, chunk, b, add),
                4 | 5 => self.tile::<S, 4, V>(simd, row, panel, chunk, b, add),
                _ => self.tile::<S, TILE_ROWS, V>(simd, row, panel, chunk, b, add),
            };
        }
    }

    /// Rows `row..row + M` of one panel; returns `M`.
    #[inline(always)]
    fn tile<S: Simd, const M: usize, const V: usize>(
        &mut self,
        simd: S,
        row: usize,
        panel: &Panel<'_>,
        chunk: &Chunk,
        b: &[[S::f32s; V]],
        add: bool,
    ) -> usize {
        let sums = self.left.sums::<S, M, V>(simd, row, chunk, b);
        let starts = &self.out.starts[row..row + M];
        let columns = &panel.columns;
        let out = &mut *self.out.values;
        if columns.len() == V * S::F32_LANES {
            write_whole_rows(simd, &sums, out, |i| starts[i] + columns.start, add);
            return M;
        }
        // A copy, so that the sums need no memory on the other way.
        let in_memory = sums;
        for (sums, start) in in_memory.iter().zip(starts) {
            write_row(simd, sums, &mut out[start + columns.start..start + columns.end], add);
        }
        M
    }

    fn finish(&mut self, rows: Range<usize>) {
        finish(self.b.level, &mut self.out, self.b.columns, rows, self.epilogue);
    }
}
