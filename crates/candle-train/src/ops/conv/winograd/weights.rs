//! Kernels -> the right operands of the 36 products.

use pulp::{Simd, WithSimd};

use super::components::{COMPONENTS, Pieces};
use super::tiles::TileSize;
use super::transform::{Kernel, Transform, rounded};
use crate::ops::kernel::{Block, Panels, Strided, best, run, transpose_best};
use crate::ops::scratch::Scratch;

/// Taps of a kernel.
pub(super) const TAPS: usize = 9;

/// A weight (co, ci, 3, 3) seen as a matrix of kernels: (ci, co) forward; (co, ci), each rotated by
/// 180 degrees, for the gradient of the input.
#[derive(Clone, Copy)]
pub(super) struct Kernels<'a> {
    values: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    row_stride: usize,
    column_stride: usize,
    rotated: bool,
    /// To bf16.
    rounds: bool,
}

impl<'a> Kernels<'a> {
    /// Kernels of a weight, rounded to bf16 if it `rounds`.
    pub(super) fn forward(weight: &'a [f32], [ci, co]: [usize; 2], rounds: bool) -> Self {
        assert_eq!(weight.len(), ci * co * TAPS, "a weight covers its values");
        Self {
            values: weight,
            rows: ci,
            columns: co,
            row_stride: TAPS,
            column_stride: TAPS * ci,
            rotated: false,
            rounds,
        }
    }

    pub(super) fn backward(weight: &'a [f32], [ci, co]: [usize; 2], rounds: bool) -> Self {
        let forward = Self::forward(weight, [ci, co], rounds);
        Self {
            rows: co,
            columns: ci,
            row_stride: forward.column_stride,
            column_stride: forward.row_stride,
            rotated: true,
            ..forward
        }
    }

    /// A right operand (rows, columns) per component.
    pub(super) fn panels(&self) -> [Panels; COMPONENTS] {
        Panels::pack_together(self.rows, self.columns, |block, pieces| {
            let taps = self.taps(block);
            let width = block.width;
            run(best(), Run { taps: &taps, kernels: self, width, pieces });
        })
    }

    /// (rows, taps, width): of each row, one tap of all columns side by side.
    fn taps(&self, block: &Block) -> Scratch {
        let columns = block.columns.len();
        let width = block.width;
        let mut taps = Scratch::new(block.rows.len() * TAPS * width);
        if columns < width {
            taps.fill(0.0);
        }
        for (row, taps) in block.rows.clone().zip(taps.chunks_exact_mut(TAPS * width)) {
            let start = row * self.row_stride + block.columns.start * self.column_stride;
            let from = Strided { values: &self.values[start..], stride: self.column_stride };
            transpose_best(from, Strided { values: taps, stride: width }, (TAPS, columns));
        }
        taps
    }
}

/// Transforms the kernels of a block.
struct Run<'a> {
    taps: &'a [f32],
    kernels: &'a Kernels<'a>,
    width: usize,
    pieces: Pieces<'a>,
}

impl WithSimd for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Kernels { rotated, rounds, .. } = *self.kernels;
        let vectors = self.width / S::F32_LANES;
        let mut pieces = self.pieces.map(|values| S::as_mut_simd_f32s(values).0);
        let mut workspace = Kernel::workspace(simd);
        for (i, taps) in self.taps.chunks_exact(TAPS * self.width).enumerate() {
            let (taps, _) = S::as_simd_f32s(taps);
            for vector in 0..vectors {
                Kernel::tile(
                    simd,
                    TileSize::WHOLE,
                    &mut workspace,
                    #[inline(always)]
                    |row, column| {
                        let tap = 3 * row + column;
                        let tap = if rotated { TAPS - 1 - tap } else { tap };
                        let values = taps[tap * vectors + vector];
                        if rounds { rounded(simd, values) } else { values }
                    },
                    #[inline(always)]
                    |row, values| {
                        for (column, value) in values.into_iter().enumerate() {
                            pieces[row * 6 + column][i * vectors + vector] = value;
                        }
                    },
                );
            }
        }
    }
}
