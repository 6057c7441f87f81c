//! Dense products: register tiles over packed panels; the instruction set is chosen at run
//! time.
//!
//! The right operand B is packed once into [`Panels`]. A [`product::Left`] operand says where a
//! tile finds its values of A: row slices reached one by one ([`Rows`], so that a convolution needs
//! no im2col matrix: a padded tap is a slice of zeros), or columns of a row-major matrix
//! ([`Columns`], for weight gradients). [`product()`] multiplies a block of rows on the calling
//! thread; [`multiply`] cuts a whole product into such blocks.
//!
//! Operands are f32, or rounded to bf16 where the processor multiplies that faster ([`Format`]),
//! which takes bf16 as it is ([`Factor`]).
//! Each element of an f32 result is a sum of chunks of fixed length ([`Sums`]), added in order, and
//! each chunk is one chain of fused multiply-adds. So bits depend neither on threads, nor on
//! caches, nor on which of AVX-512, AVX2 and NEON runs. Processors without fused multiply-add round
//! each product, too.

mod bf16;
mod factor;
mod left;
mod level;
mod matrix;
mod panels;
mod product;
mod right;
mod stored;
#[cfg(test)]
mod tests;
mod tile;
mod transpose;

pub(in crate::ops) use bf16::Instructions;
pub(in crate::ops) use factor::Factor;
pub(in crate::ops) use left::{Columns, Rows};
pub(in crate::ops) use level::{best, run};
pub(in crate::ops) use matrix::{
    Matrix, Rowwise, balanced, blocks_of_tiles, multiplied, multiply, multiply_and_finish,
    rows_per_block,
};
pub(in crate::ops) use panels::{Block, Source};
pub(in crate::ops) use product::{Epilogue, Output, Sums, Write, product};
pub(in crate::ops) use right::{Format, Panels};
pub(in crate::ops) use stored::StoredMatrix;
pub(in crate::ops) use transpose::{Strided, transpose_best};
