//! Losses: one scalar in the GPU's memory, which nobody waits for here.

use candle_core::{CudaStorage, DType, Result, Tensor};

use super::address::{Address, of_tensor};
use super::gpu::{Arg, Gpu, Grid, Scratch, args, whole, wrap};

/// Elements per partial sum of a regression loss.
pub(super) const BLOCK: usize = 1 << 14;

/// What each row of logits should be.
pub(in crate::ops) enum Targets<'a> {
    /// Classes; `None` does not count.
    Labels(&'a [Option<usize>]),
    /// Classes, u32, that all count.
    Placed(Address),
    /// (rows, classes), f32.
    Probabilities(Address),
}

/// Rows of logits under softmax and cross-entropy, and what backward needs of them.
pub(in crate::ops) struct CrossEntropy {
    labels: Labels,
    targets: Option<Address>,
    largest: CudaStorage,
    factor: CudaStorage,
    smoothing: f64,
    divisor: f64,
    rows: usize,
    classes: usize,
}

/// Labels in the GPU's memory, as i32.
enum Labels {
    None,
    /// Sent there for this loss.
    Sent(Scratch),
    /// There before and after it.
    At(Address),
}

impl Labels {
    fn argument(&self) -> Arg {
        match self {
            Self::None => None::<Address>.into(),
            Self::Sent(labels) => labels.at(),
            Self::At(address) => (*address).into(),
        }
    }
}

/// Loss and best class of each row.
pub(in crate::ops) struct RowScores {
    pub(in crate::ops) losses: Vec<f64>,
    pub(in crate::ops) best: Vec<u32>,
}

/// Loss of each row, on the GPU; 0 where it does not count.
struct Losses(Scratch);

impl CrossEntropy {
    /// The sum of the rows' losses over `divisor`, a scalar.
    pub(in crate::ops) fn forward(
        gpu: &Gpu,
        logits: Address,
        targets: &Targets<'_>,
        (rows, classes): (usize, usize),
        (smoothing, divisor): (f64, f64),
    ) -> Result<(CudaStorage, Self)> {
        let (found, losses, _) = Self::over(gpu, logits, targets, (rows, classes), smoothing)?;
        let loss = gpu.storage(DType::F32, 1)?;
        let arguments = [losses.0.at(), whole(&loss)?.into(), divisor.into(), rows.into()];
        gpu.launch("total", Grid::rows(1), &arguments)?;
        Ok((loss, Self { divisor, ..found }))
    }

    /// Each row's best class, (rows) u32.
    pub(in crate::ops) fn best(
        gpu: &Gpu,
        logits: Address,
        targets: &Targets<'_>,
        sizes: (usize, usize),
    ) -> Result<Tensor> {
        let (_, _, best) = Self::over(gpu, logits, targets, sizes, 0.0)?;
        Ok(wrap(best, sizes.0))
    }

    /// Each row's loss and best class. Waits for the GPU.
    pub(in crate::ops) fn score(
        gpu: &Gpu,
        logits: Address,
        targets: &Targets<'_>,
        sizes: (usize, usize),
        smoothing: f64,
    ) -> Result<RowScores> {
        let (_, losses, best) = Self::over(gpu, logits, targets, sizes, smoothing)?;
        let losses = bytemuck::pod_collect_to_vec(&gpu.download(&losses.0)?);
        let best = wrap(best, sizes.0).to_vec1()?;
        Ok(RowScores { losses, best })
    }

    fn over(
        gpu: &Gpu,
        logits: Address,
        targets: &Targets<'_>,
        (rows, classes): (usize, usize),
        smoothing: f64,
    ) -> Result<(Self, Losses, CudaStorage)> {
        let (labels, targets) = match targets {
            Targets::Labels(labels) => {
                let number = |label: &Option<usize>| label.map_or(-1, |label| label as i32);
                let numbers: Vec<i32> = labels.iter().map(number).collect();
                (Labels::Sent(gpu.upload(bytemuck::cast_slice(&numbers))?), None)
            }
            Targets::Placed(labels) => (Labels::At(*labels), None),
            Targets::Probabilities(targets) => (Labels::None, Some(*targets)),
        };
        let column = |dtype| gpu.storage(dtype, rows);
        let (largest, factor) = (column(DType::F32)?, column(DType::F32)?);
        let (best, losses) = (column(DType::U32)?, gpu.scratch(8 * rows)?);
        let arguments = [
            logits.into(),
            labels.argument(),
            targets.into(),
            losses.at(),
            whole(&largest)?.into(),
            whole(&factor)?.into(),
            whole(&best)?.into(),
            smoothing.into(),
            classes.into(),
        ];
        gpu.launch("cross_entropy_rows", Grid::rows(rows), &arguments)?;
        let found =
            Self { labels, targets, largest, factor, smoothing, divisor: 1.0, rows, classes };
        Ok((found, Losses(losses), best))
    }

    /// The gradient of the logits (rows, classes), given that of the loss.
    pub(in crate::ops) fn backward(
        &self,
        gpu: &Gpu,
        logits: &Tensor,
        dy: &Tensor,
    ) -> Result<Tensor> {
        let n = self.rows * self.classes;
        let gradient = gpu.storage(DType::F32, n)?;
        let arguments = [
            of_tensor(logits)?.into(),
            self.labels.argument(),
            self.targets.into(),
            whole(&self.largest)?.into(),
            whole(&self.factor)?.into(),
            of_tensor(dy)?.into(),
            whole(&gradient)?.into(),
            self.smoothing.into(),
            self.divisor.into(),
            self.classes.into(),
            n.into(),
        ];
        gpu.launch("cross_entropy_gradient", Grid::over(n), &arguments)?;
        Ok(wrap(gradient, logits.shape()))
    }
}

/// Mean over `n` elements of (p - t)^2, or of |p - t|.
pub(in crate::ops) fn regression(
    gpu: &Gpu,
    [p, t]: [Address; 2],
    absolute: bool,
    n: usize,
) -> Result<CudaStorage> {
    let blocks = n.div_ceil(BLOCK);
    let sums = regression_sums(gpu, [p, t], absolute, (BLOCK, n))?;
    let loss = gpu.storage(DType::F32, 1)?;
    let arguments = [sums.at(), whole(&loss)?.into(), (n as f64).into(), blocks.into()];
    gpu.launch("total", Grid::rows(1), &arguments)?;
    Ok(loss)
}

/// The sum of (p - t)^2, or |p - t|, over each `per_block` elements. Waits for the GPU.
pub(in crate::ops) fn regression_scores(
    gpu: &Gpu,
    operands: [Address; 2],
    absolute: bool,
    (per_block, n): (usize, usize),
) -> Result<Vec<f64>> {
    let sums = regression_sums(gpu, operands, absolute, (per_block, n))?;
    Ok(bytemuck::pod_collect_to_vec(&gpu.download(&sums)?))
}

pub(super) fn regression_sums(
    gpu: &Gpu,
    [p, t]: [Address; 2],
    absolute: bool,
    (per_block, n): (usize, usize),
) -> Result<Scratch> {
    let blocks = n.div_ceil(per_block);
    let sums = gpu.scratch(8 * blocks)?;
    let arguments = [p.into(), t.into(), sums.at(), absolute.into(), per_block.into(), n.into()];
    gpu.launch("regression_sums", Grid::rows(blocks), &arguments)?;
    Ok(sums)
}

/// The gradient of p, given that of the loss.
pub(in crate::ops) fn regression_gradient(
    gpu: &Gpu,
    [p, t, dy]: [Address; 3],
    absolute: bool,
    n: usize,
) -> Result<CudaStorage> {
    let gradient = gpu.storage(DType::F32, n)?;
    let arguments = args![p, t, dy, whole(&gradient)?, absolute, n];
    gpu.launch("regression_gradient", Grid::over(n), arguments)?;
    Ok(gradient)
}
