//! Sums over the rows of (rows, c) values, and batch normalisation with them.

use candle_core::{CudaStorage, DType, Result};

use super::gpu::{COLUMNS, Gpu, Grid, THREADS, packs_of_block};
use super::kernel_args::{Address, Arg, args, suffix, whole};

/// Least rows of a chunk.
const MIN_CHUNK_ROWS: usize = 64;
/// Blocks of a grid: about four for each multiprocessor of a large GPU. More would only leave more
/// partial sums to the few blocks that merge them; and the number is the same on all GPUs, so that
/// the order of additions is.
const BLOCKS: usize = 512;
/// Columns that a thread takes together, where it can.
const PACK: usize = 4;
/// Rows that a thread reads at once, at most: `over_rows` of columns.cu.
const ROWS_AT_ONCE: usize = 8;

/// Chunks of rows.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    rows: usize,
    c: usize,
    pub(super) per_chunk: usize,
    pub(super) count: usize,
}

impl Chunks {
    /// For `layers` grids at once, a thread per column.
    pub(super) fn over(rows: usize, c: usize, layers: usize) -> Self {
        Self::of_blocks(rows, c, c.div_ceil(COLUMNS) * layers, 1)
    }

    /// `blocks` lie side by side; a chunk of more than the fewest rows has a `multiple` of rows.
    fn of_blocks(rows: usize, c: usize, blocks: usize, multiple: usize) -> Self {
        let chunks = (BLOCKS / blocks.max(1)).max(1);
        let per_chunk = rows.div_ceil(chunks).max(MIN_CHUNK_ROWS).next_multiple_of(multiple);
        Self { rows, c, per_chunk, count: rows.div_ceil(per_chunk) }
    }

    fn merging(self) -> Grid {
        Grid::merging(self.c)
    }
}

/// Packs of columns, by which kernels go over the rows of (rows, c) values.
#[derive(Clone, Copy)]
struct Packs {
    chunks: Chunks,
    /// Columns of a pack.
    size: usize,
}

impl Packs {
    /// Packs of four where columns come in fours and all `values` begin where such a pack may; else
    /// single columns.
    fn new(rows: usize, c: usize, values: &[Address]) -> Self {
        let fits = |values: &Address| {
            values.at.is_multiple_of((PACK * values.dtype.size_in_bytes()) as u64)
        };
        let is_packed = c.is_multiple_of(PACK) && values.iter().all(fits);
        let size = if is_packed { PACK } else { 1 };
        let width = packs_of_block(c / size);
        let lanes = THREADS as usize / width;
        let blocks = (c / size).div_ceil(width);
        Self { chunks: Chunks::of_blocks(rows, c, blocks, lanes * ROWS_AT_ONCE), size }
    }

    fn grid(self) -> Grid {
        Grid::packs(self.chunks.c / self.size, self.chunks.count)
    }

    /// The arguments that end those of a kernel: rows, columns, rows of a chunk, and whether packs
    /// are of four.
    fn sizes(self) -> [Arg; 4] {
        let Chunks { rows, c, per_chunk, .. } = self.chunks;
        [rows.into(), c.into(), per_chunk.into(), (self.size > 1).into()]
    }

    /// Enqueues the instance of `kernel` for the type of `values`.
    fn launch(self, gpu: &Gpu, kernel: &str, values: Address, arguments: &[Arg]) -> Result<()> {
        let kernel = format!("{kernel}_{}", suffix(values.dtype)?);
        gpu.launch(&kernel, self.grid(), &[arguments, &self.sizes()].concat())
    }
}

/// The sum of each column, f32.
pub(super) fn column_sums(gpu: &Gpu, x: Address, rows: usize, c: usize) -> Result<CudaStorage> {
    let packs = Packs::new(rows, c, &[x]);
    let partial = gpu.storage(DType::F32, packs.chunks.count * c)?;
    let at = whole(&partial)?;
    packs.launch(gpu, "column_sums", x, args![x, at])?;
    merge_sums(gpu, at, packs.chunks.count, c)
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
    gpu.launch("merge_sums", Grid::merging(c), arguments)?;
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
    let packs = Packs::new(rows, c, &[x]);
    let chunks = packs.chunks;
    let partial = gpu.storage(DType::F32, 2 * chunks.count * c)?;
    let at = whole(&partial)?;
    packs.launch(gpu, "batch_moments", x, args![x, at])?;
    let column = || gpu.storage(DType::F32, c);
    let statistics = Statistics { mean: column()?, variance: column()?, inverse_std: column()? };
    let mean = whole(&statistics.mean)?;
    let variance = whole(&statistics.variance)?;
    let inverse = whole(&statistics.inverse_std)?;
    let arguments =
        args![at, mean, variance, inverse, eps, chunks.count, chunks.rows, c, chunks.per_chunk];
    gpu.launch("batch_statistics", chunks.merging(), arguments)?;
    Ok(statistics)
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

/// Constants of a batch norm for each column, (c) f32 each.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Columns {
    pub(in crate::ops) mean: Address,
    pub(in crate::ops) inverse_std: Address,
    pub(in crate::ops) gamma: Address,
    pub(in crate::ops) beta: Address,
    pub(in crate::ops) gate: Gate,
}

/// Places at which the activation after a batch norm lets gradients through.
#[derive(Clone, Copy)]
pub(in crate::ops) enum Gate {
    /// Everywhere.
    Open,
    /// A rectifier, where this, its output, is positive.
    Output(Address),
    /// A rectifier, where the norm is positive: nothing was added to it.
    Norm,
}

/// Gradients of a batch norm's scale and shift, and what [`Columns::pull`] makes of them.
pub(in crate::ops) struct NormSums {
    pub(in crate::ops) gamma: CudaStorage,
    pub(in crate::ops) beta: CudaStorage,
    /// Three factors of each column.
    pub(in crate::ops) slopes: CudaStorage,
}

impl Columns {
    fn is_rectified(&self) -> bool {
        !matches!(self.gate, Gate::Open)
    }

    fn is_gated_by_norm(&self) -> bool {
        matches!(self.gate, Gate::Norm)
    }

    fn output(&self) -> Option<Address> {
        match self.gate {
            Gate::Output(y) => Some(y),
            Gate::Open | Gate::Norm => None,
        }
    }

    /// activation(gamma (x - mean) / std + beta + residual), in x's type, which is the residual's.
    pub(in crate::ops) fn apply(
        &self,
        gpu: &Gpu,
        x: Address,
        residual: Option<Address>,
        (rows, c): (usize, usize),
    ) -> Result<CudaStorage> {
        let y = gpu.storage(x.dtype, rows * c)?;
        let out = whole(&y)?;
        let Self { mean, inverse_std, gamma, beta, .. } = *self;
        let packs = Packs::new(rows, c, &[x, residual.unwrap_or(x), out]);
        let is_rectified = self.is_rectified();
        let arguments = args![x, mean, inverse_std, gamma, beta, residual, out, is_rectified];
        packs.launch(gpu, "batch_norm", x, arguments)?;
        Ok(y)
    }

    /// Sums of the gradient of the output, `dy`, in x's type. With a gate that is the output, the
    /// gradient before the rectifier is written over `dy`: it is that of the residual.
    pub(in crate::ops) fn sums(
        &self,
        gpu: &Gpu,
        x: Address,
        dy: Address,
        (rows, c): (usize, usize),
    ) -> Result<NormSums> {
        let y = self.output();
        let packs = Packs::new(rows, c, &[x, y.unwrap_or(x), dy]);
        let chunks = packs.chunks;
        let partial = gpu.storage(DType::F32, 2 * chunks.count * c)?;
        let at = whole(&partial)?;
        let Self { mean, inverse_std, gamma, beta, .. } = *self;
        let arguments = args![x, mean, inverse_std, gamma, beta, y, dy, at, self.is_rectified()];
        packs.launch(gpu, "batch_norm_sums", x, arguments)?;
        let column = |factors: usize| gpu.storage(DType::F32, factors * c);
        let sums = NormSums { gamma: column(1)?, beta: column(1)?, slopes: column(3)? };
        let [of_gamma, of_beta] = [whole(&sums.gamma)?, whole(&sums.beta)?];
        let slopes = whole(&sums.slopes)?;
        let count = chunks.count;
        let arguments = args![at, inverse_std, gamma, of_gamma, of_beta, slopes, count, rows, c];
        gpu.launch("batch_norm_affine", chunks.merging(), arguments)?;
        Ok(sums)
    }

    /// The gradient of x, in its type, from that before the rectifier, `dy`; or, where
    /// [`Columns::sums`] was given no output, from that after it.
    pub(in crate::ops) fn pull(
        &self,
        gpu: &Gpu,
        x: Address,
        dy: Address,
        slopes: Address,
        (rows, c): (usize, usize),
    ) -> Result<CudaStorage> {
        let dx = gpu.storage(x.dtype, rows * c)?;
        let out = whole(&dx)?;
        let beta = self.is_gated_by_norm().then_some(self.beta);
        let packs = Packs::new(rows, c, &[x, dy, out]);
        packs.launch(gpu, "batch_norm_pull", x, args![dy, x, self.mean, slopes, beta, out])?;
        Ok(dx)
    }
}
