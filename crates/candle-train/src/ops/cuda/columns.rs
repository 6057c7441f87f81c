//! Sums over the rows of (rows, c) values, and batch normalisation with them.

use candle_core::{CudaStorage, DType, Result};

use super::address::Address;
use super::gpu::{COLUMNS, Gpu, Grid, args, suffix, whole};

/// Least rows of a chunk.
const MIN_CHUNK_ROWS: usize = 64;
/// Blocks of a grid: about four for each multiprocessor of a large GPU. More would only leave more
/// partial sums to the few blocks that merge them; and the number is the same on all GPUs, so that
/// the order of additions is.
const BLOCKS: usize = 512;

/// How rows are cut.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    rows: usize,
    c: usize,
    pub(super) per_chunk: usize,
    pub(super) count: usize,
}

impl Chunks {
    fn new(rows: usize, c: usize) -> Self {
        Self::over(rows, c, 1)
    }

    /// The same for `layers` grids at once.
    pub(super) fn over(rows: usize, c: usize, layers: usize) -> Self {
        let chunks = (BLOCKS / (c.div_ceil(COLUMNS) * layers).max(1)).max(1);
        let per_chunk = rows.div_ceil(chunks).max(MIN_CHUNK_ROWS);
        Self { rows, c, per_chunk, count: rows.div_ceil(per_chunk) }
    }

    fn grid(self) -> Grid {
        Grid::columns(self.c, self.count)
    }

    fn merging(self) -> Grid {
        Grid::columns(self.c, 1)
    }
}

/// The sum of each column, f32.
pub(super) fn column_sums(gpu: &Gpu, x: Address, rows: usize, c: usize) -> Result<CudaStorage> {
    let chunks = Chunks::new(rows, c);
    let partial = gpu.storage(DType::F32, chunks.count * c)?;
    let at = whole(&partial)?;
    let kernel = format!("column_sums_{}", suffix(x.dtype)?);
    gpu.launch(&kernel, chunks.grid(), args![x, at, rows, c, chunks.per_chunk])?;
    merge_sums(gpu, at, chunks.count, c)
}

/// The sums over the chunks of `partial` (chunks, c), f32.
pub(super) fn merge_sums(
    gpu: &Gpu,
    partial: Address,
    chunks: usize,
    c: usize,
) -> Result<CudaStorage> {
    let sums = gpu.storage(DType::F32, c)?;
    let arguments = args![partial, whole(&sums)?, chunks, c];
    gpu.launch("merge_sums", Grid::columns(c, 1), arguments)?;
    Ok(sums)
}

/// Statistics of one batch, (c) f32 each.
pub(in crate::ops) struct Statistics {
    pub(in crate::ops) mean: CudaStorage,
    pub(in crate::ops) variance: CudaStorage,
    pub(in crate::ops) inverse_std: CudaStorage,
}

/// Mean, biased variance and 1 / sqrt(variance + eps) of each column of x (rows, c).
pub(in crate::ops) fn batch_statistics(
    gpu: &Gpu,
    x: Address,
    (rows, c): (usize, usize),
    eps: f64,
) -> Result<Statistics> {
    let chunks = Chunks::new(rows, c);
    let partial = gpu.storage(DType::F32, 2 * chunks.count * c)?;
    let at = whole(&partial)?;
    let kernel = format!("batch_moments_{}", suffix(x.dtype)?);
    gpu.launch(&kernel, chunks.grid(), args![x, at, rows, c, chunks.per_chunk])?;
    let column = || gpu.storage(DType::F32, c);
    let found = Statistics { mean: column()?, variance: column()?, inverse_std: column()? };
    let (mean, variance) = (whole(&found.mean)?, whole(&found.variance)?);
    let inverse = whole(&found.inverse_std)?;
    let arguments =
        args![at, mean, variance, inverse, eps, chunks.count, chunks.rows, c, chunks.per_chunk];
    gpu.launch("batch_statistics", chunks.merging(), arguments)?;
    Ok(found)
}

/// 1 / sqrt(variance + eps) of each column.
pub(in crate::ops) fn inverse_deviation(
    gpu: &Gpu,
    variance: Address,
    eps: f64,
    c: usize,
) -> Result<CudaStorage> {
    let out = gpu.storage(DType::F32, c)?;
    gpu.launch("inverse_deviation", Grid::over(c), args![variance, whole(&out)?, eps, c])?;
    Ok(out)
}

/// running = (1 - momentum) running + momentum scale value, where the value and the other statistic
/// of its column are finite.
pub(in crate::ops) fn move_running(
    gpu: &Gpu,
    running: Address,
    [value, other]: [Address; 2],
    momentum: f64,
    scale: f64,
    c: usize,
) -> Result<()> {
    let arguments = args![running, value, other, momentum, scale, c];
    gpu.launch("move_running", Grid::over(c), arguments)
}

/// What a batch norm needs of each column, (c) f32 each.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Columns {
    pub(in crate::ops) mean: Address,
    pub(in crate::ops) inverse_std: Address,
    pub(in crate::ops) gamma: Address,
    pub(in crate::ops) beta: Address,
    pub(in crate::ops) rectified: bool,
}

/// Gradients of a batch norm's scale and shift, and what [`Columns::pull`] makes of them.
pub(in crate::ops) struct NormSums {
    pub(in crate::ops) gamma: CudaStorage,
    pub(in crate::ops) beta: CudaStorage,
    /// Three factors of each column.
    pub(in crate::ops) slopes: CudaStorage,
}

impl Columns {
    /// activation(gamma (x - mean) / std + beta + residual), f32.
    pub(in crate::ops) fn apply(
        &self,
        gpu: &Gpu,
        x: Address,
        residual: Option<Address>,
        (rows, c): (usize, usize),
    ) -> Result<CudaStorage> {
        let (y, n) = (gpu.storage(DType::F32, rows * c)?, rows * c);
        let Self { mean, inverse_std, gamma, beta, rectified } = *self;
        let kernel = format!("batch_norm_{}", suffix(x.dtype)?);
        let out = whole(&y)?;
        let arguments = args![x, mean, inverse_std, gamma, beta, residual, out, rectified, c, n];
        gpu.launch(&kernel, Grid::over(n), arguments)?;
        Ok(y)
    }

    /// Sums of the gradient of the output, `dy`, over which that before the rectifier is written:
    /// it is that of the residual. `y` is the output.
    pub(in crate::ops) fn sums(
        &self,
        gpu: &Gpu,
        x: Address,
        y: Address,
        dy: Address,
        (rows, c): (usize, usize),
    ) -> Result<NormSums> {
        let chunks = Chunks::new(rows, c);
        let partial = gpu.storage(DType::F32, 2 * chunks.count * c)?;
        let at = whole(&partial)?;
        let (y, name) = (self.rectified.then_some(y), suffix(x.dtype)?);
        let arguments = args![x, self.mean, y, dy, at, rows, c, chunks.per_chunk];
        gpu.launch(&format!("batch_norm_sums_{name}"), chunks.grid(), arguments)?;
        let (gamma, beta) = (gpu.storage(DType::F32, c)?, gpu.storage(DType::F32, c)?);
        let slopes = gpu.storage(DType::F32, 3 * c)?;
        let (of_gamma, of_beta, slope) = (whole(&gamma)?, whole(&beta)?, whole(&slopes)?);
        let arguments = args![
            at,
            self.inverse_std,
            self.gamma,
            of_gamma,
            of_beta,
            slope,
            chunks.count,
            rows,
            c
        ];
        gpu.launch("batch_norm_affine", chunks.merging(), arguments)?;
        Ok(NormSums { gamma, beta, slopes })
    }

    /// The gradient of x, in its type, from that before the rectifier.
    pub(in crate::ops) fn pull(
        &self,
        gpu: &Gpu,
        x: Address,
        dy: Address,
        slopes: Address,
        (rows, c): (usize, usize),
    ) -> Result<CudaStorage> {
        let n = rows * c;
        let dx = gpu.storage(x.dtype, n)?;
        let arguments = args![dy, x, self.mean, slopes, whole(&dx)?, c, n];
        gpu.launch(&format!("batch_norm_pull_{}", suffix(x.dtype)?), Grid::over(n), arguments)?;
        Ok(dx)
    }
}
