//! Kernels -> the right operands of the 36 products.

use pulp::{Simd, WithSimd};

use super::components::{COMPONENTS, Pieces};
use super::transform::{Kernel, Transform};
use crate::ops::kernel::{Block, Panels, best, run};

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
}

impl<'a> Kernels<'a> {
    pub(super) fn forward(weight: &'a [f32], ci: usize, co: usize) -> Self {
        assert_eq!(weight.len(), ci * co * TAPS, "a weight covers its values");
        Self {
            values: weight,
            rows: ci,
            columns: co,
            row_stride: TAPS,
            column_stride: TAPS * ci,
            rotated: false,
        }
    }

    pub(super) fn backward(weight: &'a [f32], ci: usize, co: usize) -> Self {
        let forward = Self::forward(weight, ci, co);
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
            run(best(), Run { kernels: *self, block, pieces });
        })
    }

    /// The taps of `LANES` neighbouring columns, a vector per tap; zeros outside the matrix.
    #[inline(always)]
    fn load<S: Simd>(&self, simd: S, row: usize, first_column: usize) -> [[S::f32s; 3]; 3] {
        let mut taps = [[0.0f32; 16]; TAPS];
        let lanes = S::F32_LANES.min(self.columns.saturating_sub(first_column));
        let start = |lane| row * self.row_stride + (first_column + lane) * self.column_stride;
        for (lane, start) in (0..lanes).map(|lane| (lane, start(lane))) {
            for (tap, &value) in self.values[start..start + TAPS].iter().enumerate() {
                taps[if self.rotated { TAPS - 1 - tap } else { tap }][lane] = value;
            }
        }
        let mut kernel = [[simd.splat_f32s(0.0); 3]; 3];
        for (tap, values) in taps.iter().enumerate() {
            kernel[tap / 3][tap % 3] = S::as_simd_f32s(values).0[0];
        }
        kernel
    }
}

struct Run<'a> {
    kernels: Kernels<'a>,
    block: &'a Block,
    pieces: Pieces<'a>,
}

impl WithSimd for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let vectors = self.block.width / S::F32_LANES;
        let mut pieces = self.pieces.map(|values| S::as_mut_simd_f32s(values).0);
        for (i, row) in self.block.rows.clone().enumerate() {
            for vector in 0..vectors {
                let column = self.block.columns.start + vector * S::F32_LANES;
                let values = Kernel::tile(simd, self.kernels.load(simd, row, column));
                for (piece, &value) in pieces.iter_mut().zip(values.as_flattened()) {
                    piece[i * vectors + vector] = value;
                }
            }
        }
    }
}
