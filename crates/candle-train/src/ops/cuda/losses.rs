//! Losses: one scalar in the GPU's memory; nothing here waits for it.

use candle_core::{CudaStorage, DType, Result, Tensor, bail};

use super::gpu::{Gpu, Grid, Scratch, wrap};
use super::kernel_args::{Address, Arg, args, of_tensor, whole};
use super::ledger::PassNumbers;

/// Elements per partial sum of a regression loss.
pub(super) const BLOCK: usize = 1 << 14;

/// Target of each row of logits.
pub(in crate::ops) enum Targets<'a> {
    /// Classes; `None` does not count.
    Labels(&'a [Option<usize>]),
    /// Classes, u32, that all count.
    LabelsOnGpu(Address),
    /// (rows, classes), f32.
    Probabilities(Address),
}

/// Contiguous logits (rows, classes), f32.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Logits {
    values: Address,
    rows: usize,
    classes: usize,
}

impl Logits {
    /// Logits of a tensor (rows, classes).
    pub(in crate::ops) fn of(logits: &Tensor) -> Result<Self> {
        let (rows, classes) = logits.dims2()?;
        Ok(Self { values: of_f32(logits)?, rows, classes })
    }

    /// Logits of a tensor (..., classes), with a row for each position of the other dimensions.
    pub(in crate::ops) fn of_positions(logits: &Tensor) -> Result<Self> {
        let classes = logits.dims().last().copied().unwrap_or(1);
        let rows = logits.elem_count() / classes.max(1);
        Ok(Self { values: of_f32(logits)?, rows, classes })
    }
}

/// The values of a contiguous tensor, which nothing widened on its way here.
fn of_f32(x: &Tensor) -> Result<Address> {
    match x.dtype() {
        DType::F32 => of_tensor(x),
        other => bail!("losses read f32, not {other:?}"),
    }
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
    /// `labels`, sent to the GPU; `None` does not count.
    fn sent(gpu: &Gpu, labels: &[Option<usize>]) -> Result<Self> {
        let number = |label: &Option<usize>| label.map_or(-1, |label| label as i32);
        let numbers: Vec<i32> = labels.iter().map(number).collect();
        Ok(Self::Sent(gpu.upload(bytemuck::cast_slice(&numbers))?))
    }

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
        logits: Logits,
        targets: &Targets<'_>,
        smoothing: f64,
        divisor: f64,
    ) -> Result<(CudaStorage, Self)> {
        let rows = logits.rows;
        let (found, losses, _) = Self::over(gpu, logits, targets, smoothing)?;
        let loss = gpu.storage(DType::F32, 1)?;
        let arguments = [losses.0.at(), whole(&loss)?.into(), divisor.into(), rows.into()];
        gpu.launch("total", Grid::rows(1), &arguments)?;
        Ok((loss, Self { divisor, ..found }))
    }

    /// Each row's best class, (rows) u32.
    pub(in crate::ops) fn best(gpu: &Gpu, logits: Logits, targets: &Targets<'_>) -> Result<Tensor> {
        let (_, _, best) = Self::over(gpu, logits, targets, 0.0)?;
        Ok(wrap(best, logits.rows))
    }

    /// Each row's loss and best class. Waits for the GPU.
    pub(in crate::ops) fn score(
        gpu: &Gpu,
        logits: Logits,
        targets: &Targets<'_>,
        smoothing: f64,
    ) -> Result<RowScores> {
        let (_, losses, best) = Self::over(gpu, logits, targets, smoothing)?;
        let losses = bytemuck::pod_collect_to_vec(&gpu.download(&losses.0)?);
        let best = wrap(best, logits.rows).to_vec1()?;
        Ok(RowScores { losses, best })
    }

    fn over(
        gpu: &Gpu,
        logits: Logits,
        targets: &Targets<'_>,
        smoothing: f64,
    ) -> Result<(Self, Losses, CudaStorage)> {
        let Logits { values, rows, classes } = logits;
        let (labels, targets) = match targets {
            Targets::Labels(labels) => (Labels::sent(gpu, labels)?, None),
            Targets::LabelsOnGpu(labels) => (Labels::At(*labels), None),
            Targets::Probabilities(targets) => (Labels::None, Some(*targets)),
        };
        let column = |dtype| gpu.storage(dtype, rows);
        let largest = column(DType::F32)?;
        let factor = column(DType::F32)?;
        let best = column(DType::U32)?;
        let losses = gpu.scratch(8 * rows)?;
        let arguments = [
            values.into(),
            labels.argument(),
            targets.into(),
            losses.at(),
            whole(&largest)?.into(),
            whole(&factor)?.into(),
            whole(&best)?.into(),
            smoothing.into(),
            classes.into(),
        ];
        gpu.launch("cross_entropy_rows", Grid::long_rows(rows, classes), &arguments)?;
        let loss =
            Self { labels, targets, largest, factor, smoothing, divisor: 1.0, rows, classes };
        Ok((loss, Losses(losses), best))
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

/// Rows of logits with a label each, in one pass over them: losses, right answers and, where it is
/// wanted, the gradient, which may take the place of the logits.
pub(in crate::ops) struct Scored<'a> {
    pub(in crate::ops) logits: Logits,
    pub(in crate::ops) targets: &'a Targets<'a>,
    pub(in crate::ops) gradient: Option<Address>,
    pub(in crate::ops) smoothing: f64,
    /// Divisor of the sum of the losses.
    pub(in crate::ops) divisor: f64,
}

impl Scored<'_> {
    /// The sum of the rows' losses over the divisor, a scalar. It is noted in `numbers`, with the
    /// right answers and the `weight` of the pass.
    pub(in crate::ops) fn loss(
        &self,
        gpu: &Gpu,
        numbers: &PassNumbers,
        weight: f64,
    ) -> Result<CudaStorage> {
        let loss = gpu.storage(DType::F32, 1)?;
        self.run(gpu, Some(whole(&loss)?), numbers, weight)?;
        Ok(loss)
    }

    /// Notes the right answers alone.
    pub(in crate::ops) fn count(&self, gpu: &Gpu, numbers: &PassNumbers) -> Result<()> {
        self.run(gpu, None, numbers, 0.0)
    }

    fn run(
        &self,
        gpu: &Gpu,
        loss: Option<Address>,
        numbers: &PassNumbers,
        weight: f64,
    ) -> Result<()> {
        let Logits { values, rows, classes } = self.logits;
        let labels = match self.targets {
            Targets::Labels(labels) => Labels::sent(gpu, labels)?,
            Targets::LabelsOnGpu(labels) => Labels::At(*labels),
            Targets::Probabilities(_) => bail!("probabilities have no right answer"),
        };
        let losses = gpu.scratch(8 * rows)?;
        let hits = gpu.scratch(4 * rows)?;
        let arguments = [
            values.into(),
            labels.argument(),
            losses.at(),
            hits.at(),
            self.gradient.into(),
            self.smoothing.into(),
            self.divisor.into(),
            classes.into(),
        ];
        gpu.launch("cross_entropy_scored", Grid::long_rows(rows, classes), &arguments)?;
        let arguments = [
            losses.at(),
            hits.at(),
            loss.into(),
            numbers.argument(),
            self.divisor.into(),
            weight.into(),
            rows.into(),
        ];
        gpu.launch("cross_entropy_found", Grid::rows(1), &arguments)
    }

    /// Multiplies a gradient by that of the loss.
    pub(in crate::ops) fn pull(gpu: &Gpu, gradient: &Tensor, dy: &Tensor) -> Result<()> {
        let n = gradient.elem_count();
        let arguments = args![of_tensor(gradient)?, of_tensor(dy)?, n];
        gpu.launch("scale", Grid::over(n.div_ceil(4)), arguments)
    }
}

/// `n` predictions and targets, f32, whose differences are squared, or taken without their signs.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Differences {
    prediction: Address,
    target: Address,
    absolute: bool,
    n: usize,
}

impl Differences {
    /// Differences between the elements of two contiguous tensors.
    pub(in crate::ops) fn of(operands: [&Tensor; 2], absolute: bool) -> Result<Self> {
        let [prediction, target] = operands;
        let n = prediction.elem_count();
        Ok(Self { prediction: of_f32(prediction)?, target: of_f32(target)?, absolute, n })
    }

    /// Mean of the differences, a scalar.
    pub(in crate::ops) fn mean(&self, gpu: &Gpu) -> Result<CudaStorage> {
        let blocks = self.n.div_ceil(BLOCK);
        let sums = self.sums(gpu, BLOCK)?;
        let loss = gpu.storage(DType::F32, 1)?;
        let arguments = [sums.at(), whole(&loss)?.into(), (self.n as f64).into(), blocks.into()];
        gpu.launch("total", Grid::rows(1), &arguments)?;
        Ok(loss)
    }

    /// The sums of each `per_block` elements. Waits for the GPU.
    pub(in crate::ops) fn scores(&self, gpu: &Gpu, per_block: usize) -> Result<Vec<f64>> {
        let sums = self.sums(gpu, per_block)?;
        Ok(bytemuck::pod_collect_to_vec(&gpu.download(&sums)?))
    }

    fn sums(&self, gpu: &Gpu, per_block: usize) -> Result<Scratch> {
        let Self { prediction, target, absolute, n } = *self;
        regression_sums(gpu, [prediction, target], absolute, per_block, n)
    }

    /// The gradient of the predictions, given that of the mean.
    pub(in crate::ops) fn gradient(&self, gpu: &Gpu, dy: Address) -> Result<CudaStorage> {
        let Self { prediction, target, absolute, n } = *self;
        let gradient = gpu.storage(DType::F32, n)?;
        let arguments = args![prediction, target, dy, whole(&gradient)?, absolute, n];
        gpu.launch("regression_gradient", Grid::over(n), arguments)?;
        Ok(gradient)
    }
}

/// The sum of (p - t)^2, or |p - t|, over each `per_block` of `n` elements.
pub(super) fn regression_sums(
    gpu: &Gpu,
    [p, t]: [Address; 2],
    absolute: bool,
    per_block: usize,
    n: usize,
) -> Result<Scratch> {
    let blocks = n.div_ceil(per_block);
    let sums = gpu.scratch(8 * blocks)?;
    let arguments = [p.into(), t.into(), sums.at(), absolute.into(), per_block.into(), n.into()];
    gpu.launch("regression_sums", Grid::rows(blocks), &arguments)?;
    Ok(sums)
}
