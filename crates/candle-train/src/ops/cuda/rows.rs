//! Row by row: layer, root-mean-square and group normalisation, softmax.

use candle_core::{CudaStorage, DType, Result};

use super::address::Address;
use super::columns::column_sums;
use super::gpu::{Gpu, Grid, args, whole};

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
        gpu.launch("row_norm", Grid::rows(rows), arguments)?;
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
        let weighted = gpu.storage(DType::F32, rows * c)?;
        let of_beta = wants_beta.then(|| column_sums(gpu, dy, rows, c)).transpose()?;
        let at = whole(&weighted)?;
        let arguments = args![x, residual, gamma, dy, at, eps, rms, c];
        gpu.launch("row_norm_gradient", Grid::rows(rows), arguments)?;
        Ok((column_sums(gpu, at, rows, c)?, of_beta))
    }
}

/// e^x / sum(e^x) over each row of c.
pub(in crate::ops) fn softmax(gpu: &Gpu, x: Address, rows: usize, c: usize) -> Result<CudaStorage> {
    let y = gpu.storage(DType::F32, rows * c)?;
    gpu.launch("softmax", Grid::rows(rows), args![x, whole(&y)?, c])?;
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
