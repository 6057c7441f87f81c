//! Row by row: layer, root-mean-square and group normalisation, softmax.

use candle_core::{CudaStorage, DType, Result};

use super::columns::column_sums;
use super::gpu::{Gpu, Grid};
use super::kernel_args::{Address, args, whole};

/// Values of a row up to which each thread holds one pack of four, and then four.
const SHORT_ROW: usize = 2048;
/// Values of a row up to which a block holds it.
const HELD_ROW: usize = 4096;
/// Threads that a large GPU runs at a time, about, with the registers that hold rows; the number is
/// the same on all GPUs, so that the order of additions is.
const AT_A_TIME: usize = 1 << 17;
/// Least rows of a block that adds up columns.
const MIN_ROWS: usize = 4;

/// Rows of (rows, c) and how they are normalised.
#[derive(Clone, Copy)]
pub(in crate::ops) struct RowNorm {
    pub(in crate::ops) eps: f64,
    /// Without the mean.
    pub(in crate::ops) rms: bool,
    pub(in crate::ops) rows: usize,
    pub(in crate::ops) c: usize,
}

impl RowNorm {
    /// `name` of rows.cu, for rows of this length, and the threads of its blocks.
    fn kernel(&self, name: &str) -> (String, usize) {
        let threads = |per_thread| self.c.div_ceil(per_thread).next_multiple_of(32);
        match self.c {
            c if c % 4 != 0 || c > HELD_ROW => (name.to_owned(), threads(1).min(256)),
            ..=SHORT_ROW => (name.to_owned(), threads(4)),
            _ => (format!("{name}_long"), threads(16)),
        }
    }

    /// gamma (x + residual - mean) / std + beta, f32.
    pub(in crate::ops) fn forward(
        &self,
        gpu: &Gpu,
        [x, gamma]: [Address; 2],
        residual: Option<Address>,
        beta: Option<Address>,
    ) -> Result<CudaStorage> {
        let Self { eps, rms, rows, c } = *self;
        let y = gpu.storage(DType::F32, rows * c)?;
        let arguments = args![x, residual, gamma, beta, whole(&y)?, eps, rms, c];
        let (kernel, threads) = self.kernel("row_norm");
        gpu.launch(&kernel, Grid::of(rows, threads as u32), arguments)?;
        Ok(y)
    }

    /// Over dy, the gradient of x. Returns those of gamma and, if it is wanted, beta: (c) each.
    pub(in crate::ops) fn backward(
        &self,
        gpu: &Gpu,
        [x, gamma, dy]: [Address; 3],
        residual: Option<Address>,
        wants_beta: bool,
    ) -> Result<(CudaStorage, Option<CudaStorage>)> {
        let Self { eps, rms, rows, c } = *self;
        let (kernel, threads) = self.kernel("row_norm_gradient");
        let per_block = rows.div_ceil(AT_A_TIME / threads).max(MIN_ROWS);
        let blocks = rows.div_ceil(per_block);
        let sums = |n| gpu.storage(DType::F32, n * c);
        let optional = |n| wants_beta.then(|| sums(n)).transpose();
        let gamma_parts = sums(blocks)?;
        let beta_parts = optional(blocks)?;
        let of_gamma = sums(1)?;
        let of_beta = optional(1)?;
        let address = |part: &Option<CudaStorage>| part.as_ref().map(whole).transpose();
        let parts = (whole(&gamma_parts)?, address(&beta_parts)?);
        let arguments =
            args![x, residual, gamma, dy, parts.0, parts.1, eps, rms, per_block, rows, c];
        gpu.launch(&kernel, Grid::of(blocks, threads as u32), arguments)?;
        let arguments = args![parts.0, parts.1, whole(&of_gamma)?, address(&of_beta)?, blocks, c];
        let layers = 1 + usize::from(wants_beta);
        gpu.launch("row_norm_sums", Grid::wide_columns(c, layers), arguments)?;
        Ok((of_gamma, of_beta))
    }
}

/// e^x / sum(e^x) over each row of c.
pub(in crate::ops) fn softmax(gpu: &Gpu, x: Address, rows: usize, c: usize) -> Result<CudaStorage> {
    let y = gpu.storage(DType::F32, rows * c)?;
    gpu.launch("softmax", Grid::long_rows(rows, c), args![x, whole(&y)?, c])?;
    Ok(y)
}

/// Over dy, the gradient of x.
pub(in crate::ops) fn softmax_gradient(
    gpu: &Gpu,
    y: Address,
    dy: Address,
    rows: usize,
    c: usize,
) -> Result<()> {
    gpu.launch("softmax_gradient", Grid::rows(rows), args![y, dy, c])
}

/// Groups of channels of (samples, positions, c), and how they are normalised.
#[derive(Clone, Copy)]
pub(in crate::ops) struct GroupNorm {
    pub(in crate::ops) eps: f64,
    pub(in crate::ops) samples: usize,
    pub(in crate::ops) positions: usize,
    pub(in crate::ops) groups: usize,
    pub(in crate::ops) c: usize,
}

impl GroupNorm {
    fn grid(&self) -> Grid {
        Grid::rows(self.samples * self.groups)
    }

    /// gamma (x - mean) / std + beta, f32.
    pub(in crate::ops) fn forward(
        &self,
        gpu: &Gpu,
        [x, gamma, beta]: [Address; 3],
    ) -> Result<CudaStorage> {
        let Self { eps, samples, positions, groups, c } = *self;
        let y = gpu.storage(DType::F32, samples * positions * c)?;
        let arguments = args![x, gamma, beta, whole(&y)?, eps, positions, groups, c];
        gpu.launch("group_norm", self.grid(), arguments)?;
        Ok(y)
    }

    /// Over dy, the gradient of x. Returns those of gamma and beta, (c) each.
    pub(in crate::ops) fn backward(
        &self,
        gpu: &Gpu,
        [x, gamma, dy]: [Address; 3],
    ) -> Result<[CudaStorage; 2]> {
        let Self { eps, samples, positions, groups, c } = *self;
        let rows = samples * positions;
        let weighted = gpu.storage(DType::F32, rows * c)?;
        let of_beta = column_sums(gpu, dy, rows, c)?;
        let at = whole(&weighted)?;
        let arguments = args![x, gamma, dy, at, eps, positions, groups, c];
        gpu.launch("group_norm_gradient", self.grid(), arguments)?;
        Ok([column_sums(gpu, at, rows, c)?, of_beta])
    }
}
