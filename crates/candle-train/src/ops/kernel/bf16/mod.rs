//! Products of bf16 numbers with f32 sums, by the instructions that a processor has for them.
//!
//! Both operands are packed in tiles of 16 lines, 32 numbers deep, and so rounded: A by its rows, B
//! by its columns. Tiles of B are in [`Order::Pairs`], those of A in either order that the
//! instructions take.
//! Each element of the result is one chain of sums over the whole depth, whichever block it is in.

mod panels;
mod product;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
#[path = "x86.rs"]
mod instructions;
#[cfg(not(target_arch = "x86_64"))]
#[path = "none.rs"]
mod instructions;

pub(in crate::ops) use instructions::Instructions;
pub(super) use panels::Bf16Panels;
pub(super) use product::{BLOCK_ROWS, STRIP, product};

/// Lines of a tile.
const LINES: usize = 16;
/// Pairs of numbers in a line of a tile.
const PAIRS: usize = 16;
/// Numbers in a line of a tile.
pub(super) const DEPTH: usize = 2 * PAIRS;
/// Words of a tile.
const WORDS: usize = LINES * PAIRS;

/// Pairs of bf16 numbers, the first one in the lower half.
pub(super) type Tile = [u32; WORDS];

/// Order of the words of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ops) enum Order {
    /// All pairs of the first line, then those of the second.
    Lines,
    /// The first pairs of all lines, then the second ones.
    Pairs,
}
