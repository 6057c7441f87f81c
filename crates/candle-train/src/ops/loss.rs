//! Softmax cross-entropy with class labels or class probabilities, and the scores of an evaluation.

use candle_core::{DType, Device, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
#[cfg(feature = "cuda")]
use super::cuda;
use super::math::exp;
use super::operation::{Gradients, Input, Operation, SavedForBackward};
use super::simd::{build, maximum, sum, sum_of_pairs, vectorised};
use super::storage::{read, tensor};

/// The label of a sample that does not count, as `ignore_index` of PyTorch; possible in i64 labels
/// only.
pub const IGNORED_LABEL: i64 = -100;
/// Rows that one thread is done with sooner than others are woken.
const PARALLEL_THRESHOLD: usize = 16;

/// Mean over the samples that count of -sum target log softmax(logits), with target = (1 -
/// smoothing) one-hot + smoothing / classes, as `torch.nn.CrossEntropyLoss(label_smoothing=...)`.
///
/// logits (n, classes) f32, labels (n) u32 or i64 -> scalar f32; sums over samples in f64. The
/// logits are not copied: backward makes their gradient, and nothing else of their size. Labels on
/// a GPU, u32, are not checked: they were checked when they were copied there.
///
/// # Errors
///
/// A label that is neither a class nor [`IGNORED_LABEL`], no sample that counts (PyTorch: NaN), or
/// shapes that do not fit.
pub fn cross_entropy(logits: &Tensor, labels: &Tensor, smoothing: f64) -> Result<Tensor> {
    if labels.device().is_cuda() {
        let n = labels.dims1()?;
        return apply(logits, Targets::LabelsOnGpu(labels.clone()), smoothing, n as f64);
    }
    let labels = checked_labels(logits, labels)?;
    let counted = labels.iter().flatten().count();
    if counted == 0 {
        bail!("{} labels, of which none counts", labels.len());
    }
    apply(logits, Targets::Labels(labels), smoothing, counted as f64)
}

/// Sum over the samples that count instead of their mean, and how many they are: where samples of
/// several batches are averaged, the mean of the batches' means is not the mean over the samples.
pub fn cross_entropy_sum(
    logits: &Tensor,
    labels: &Tensor,
    smoothing: f64,
) -> Result<(Tensor, usize)> {
    let labels = checked_labels(logits, labels)?;
    let counted = labels.iter().flatten().count();
    Ok((apply(logits, Targets::Labels(labels), smoothing, 1.0)?, counted))
}

/// [`cross_entropy`] with a probability of each class as target, (n, classes) f32, as PyTorch's
/// with floating-point targets. No gradient flows to the targets.
pub fn cross_entropy_soft(logits: &Tensor, targets: &Tensor, smoothing: f64) -> Result<Tensor> {
    let (n, classes) = logits.dims2()?;
    if n == 0 || classes == 0 || targets.dims() != logits.dims() {
        bail!("targets {:?} for logits {:?}", targets.dims(), logits.dims());
    }
    let targets = Targets::Probabilities(targets.detach().contiguous()?);
    apply(logits, targets, smoothing, n as f64)
}

/// Scores of the samples of one batch that count.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClassScores {
    /// Loss of each sample.
    pub losses: Vec<f32>,
    /// Sum of the losses.
    pub loss_sum: f64,
    /// Samples whose largest logit (the first, if several) is that of their label.
    pub n_correct: usize,
}

/// Losses and hits of each sample, without a graph. Arguments as [`cross_entropy`].
pub fn score_classes(logits: &Tensor, labels: &Tensor, smoothing: f64) -> Result<ClassScores> {
    let labels = checked_labels(logits, labels)?;
    #[cfg(feature = "cuda")]
    if logits.device().is_cuda() {
        return score_on_gpu(logits, &labels, smoothing);
    }
    read([logits], |[values]| {
        let mut scores = ClassScores::default();
        for (row, label) in values.chunks_exact(values.len() / labels.len()).zip(labels) {
            let Some(label) = label else { continue };
            let (loss, _) = label_loss(row, label, smoothing);
            scores.losses.push(loss as f32);
            scores.loss_sum += loss;
            scores.n_correct += usize::from(first_maximum(row) == label);
        }
        Ok(scores)
    })
}

/// Number of samples that count and whose largest logit (the first, if several) is that of their
/// label.
pub fn count_correct(logits: &Tensor, labels: &Tensor) -> Result<usize> {
    let labels = checked_labels(logits, labels)?;
    #[cfg(feature = "cuda")]
    if logits.device().is_cuda() {
        let logits = logits.contiguous()?;
        let gpu = cuda::Gpu::of_tensor(&logits)?;
        let targets = cuda::Targets::Labels(&labels);
        let best = cuda::CrossEntropy::best(&gpu, cuda::Logits::of(&logits)?, &targets)?;
        let best = best.to_vec1::<u32>()?;
        let is_right = |(label, best): &(&Option<usize>, u32)| **label == Some(*best as usize);
        return Ok(labels.iter().zip(best).filter(is_right).count());
    }
    read([logits], |[values]| {
        let rows =
            values.par_chunks_exact(values.len() / labels.len()).with_min_len(PARALLEL_THRESHOLD);
        let is_right =
            |(row, label): &(&[f32], &Option<usize>)| **label == Some(first_maximum(row));
        Ok(rows.zip(&labels).filter(is_right).count())
    })
}

/// Number of samples that count and whose label is among the `k` largest logits, the first ones if
/// several are equal. Logits on a GPU are copied to the CPU's memory.
pub fn count_in_top(logits: &Tensor, labels: &Tensor, k: usize) -> Result<usize> {
    let labels = checked_labels(logits, labels)?;
    let logits = logits.to_device(&Device::Cpu)?;
    read([&logits], |[values]| {
        let rows =
            values.par_chunks_exact(values.len() / labels.len()).with_min_len(PARALLEL_THRESHOLD);
        let is_in = |(row, label): &(&[f32], &Option<usize>)| {
            label.is_some_and(|label| before(row, label) < k)
        };
        Ok(rows.zip(&labels).filter(is_in).count())
    })
}

/// Logits that are larger than that of `label`, or equal and before it; NaN is larger than all.
fn before(row: &[f32], label: usize) -> usize {
    let own = row[label];
    let is_before = |(class, x): (usize, &f32)| !(*x < own || (*x == own && class >= label));
    row.iter().enumerate().filter(|&entry| is_before(entry)).count()
}

#[cfg(feature = "cuda")]
fn score_on_gpu(logits: &Tensor, labels: &[Option<usize>], smoothing: f64) -> Result<ClassScores> {
    let logits = logits.contiguous()?;
    let gpu = cuda::Gpu::of_tensor(&logits)?;
    let targets = cuda::Targets::Labels(labels);
    let logits = cuda::Logits::of(&logits)?;
    let scored = cuda::CrossEntropy::score(&gpu, logits, &targets, smoothing)?;
    let mut scores = ClassScores::default();
    for ((label, loss), best) in labels.iter().zip(scored.losses).zip(scored.best) {
        let Some(label) = *label else { continue };
        scores.losses.push(loss as f32);
        scores.loss_sum += loss;
        scores.n_correct += usize::from(best as usize == label);
    }
    Ok(scores)
}

pub(super) enum Targets {
    /// Classes; `None` does not count.
    Labels(Vec<Option<usize>>),
    /// Classes on the GPU, (n) u32.
    LabelsOnGpu(Tensor),
    /// (n, classes), contiguous.
    Probabilities(Tensor),
}

pub(super) struct CrossEntropy {
    pub(super) targets: Targets,
    pub(super) smoothing: f64,
    /// Divisor of the sum of the losses.
    pub(super) divisor: f64,
    /// Numbers of each row that counts, which forward keeps for backward.
    pub(super) rows: SavedForBackward<Vec<Option<Row>>>,
}

/// Numbers that turn the logits of a row into the gradient: `factor` e^(logit - `largest`) minus the
/// target.
#[derive(Clone, Copy)]
pub(super) struct Row {
    largest: f32,
    /// The sum of the target over the sum of the exponentials.
    factor: f32,
}

fn apply(logits: &Tensor, targets: Targets, smoothing: f64, divisor: f64) -> Result<Tensor> {
    let op = CrossEntropy { targets, smoothing, divisor, rows: SavedForBackward::default() };
    chain::apply([logits], op)
}

impl CrossEntropy {
    /// Loss of each row, 0 where it does not count.
    pub(super) fn losses(&self, logits: &[f32], classes: usize) -> Result<Vec<(f64, Option<Row>)>> {
        let rows = logits.par_chunks_exact(classes).with_min_len(PARALLEL_THRESHOLD);
        let counted = |(loss, row)| (loss, Some(row));
        match &self.targets {
            Targets::Labels(labels) => {
                let loss = |(x, label): (&[f32], &Option<usize>)| {
                    label.map_or((0.0, None), |label| counted(label_loss(x, label, self.smoothing)))
                };
                Ok(rows.zip(labels).map(loss).collect())
            }
            Targets::LabelsOnGpu(labels) => device_mismatch(labels),
            Targets::Probabilities(targets) => read([targets], |[targets]| {
                let rows = rows.zip(targets.par_chunks_exact(classes));
                Ok(rows.map(|(x, t)| counted(soft_loss(x, t, self.smoothing))).collect())
            }),
        }
    }

    /// (softmax - target) scale, where `scale` is that of a row, in blocks that may begin and end
    /// within a row.
    pub(super) fn gradient(
        &self,
        x: &[f32],
        targets: Option<&[f32]>,
        rows: &[Option<Row>],
        scale: impl Fn(usize) -> f64 + Sync,
    ) -> Vec<f32> {
        let classes = x.len() / rows.len();
        build(x.len(), |start, block| {
            let mut rest = block;
            let mut at = start;
            while !rest.is_empty() {
                let index = at / classes;
                let class = at % classes;
                let (gradient, after) = rest.split_at_mut((classes - class).min(rest.len()));
                let range = at..at + gradient.len();
                (rest, at) = (after, range.end);
                // A block comes zeroed, which is the gradient of a row that does not count.
                let Some(row) = rows[index] else { continue };
                let scale = scale(index);
                let hit = ((1.0 - self.smoothing) * scale) as f32;
                let uniform = (self.smoothing * scale) as f32 / classes as f32;
                let row = Row { factor: row.factor * scale as f32, ..row };
                let target = targets.map(|targets| &targets[range.clone()]);
                vectorised(
                    #[inline(always)]
                    || part_of_gradient(gradient, &x[range.clone()], row, uniform, target, hit),
                );
                if let Targets::Labels(labels) = &self.targets
                    && let Some(at) = labels[index].and_then(|label| label.checked_sub(class))
                    && let Some(gradient) = gradient.get_mut(at)
                {
                    *gradient -= hit;
                }
            }
        })
    }
}

/// Factor e^(x - largest) - uniform - hit target.
#[inline(always)]
fn part_of_gradient(
    gradient: &mut [f32],
    x: &[f32],
    Row { largest, factor }: Row,
    uniform: f32,
    target: Option<&[f32]>,
    hit: f32,
) {
    for (gradient, x) in gradient.iter_mut().zip(x) {
        *gradient = exp(x - largest) * factor - uniform;
    }
    if let Some(target) = target {
        for (gradient, target) in gradient.iter_mut().zip(target) {
            *gradient -= hit * target;
        }
    }
}

impl Operation for CrossEntropy {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "cross-entropy";

    fn forward(&self, [logits]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let (_, classes) = logits.shape.dims2()?;
        let (losses, rows): (Vec<f64>, _) =
            self.losses(logits.values, classes)?.into_iter().unzip();
        self.rows.keep(rows);
        Ok((vec![(losses.iter().sum::<f64>() / self.divisor) as f32], ().into()))
    }

    fn backward(&self, [logits]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let scale = f64::from(dy.to_scalar::<f32>()?) / self.divisor;
        let Some(rows) = self.rows.get() else { bail!("backward of a loss that was not computed") };
        let gradient = match &self.targets {
            Targets::Labels(_) => {
                read([logits], |[x]| Ok(self.gradient(x, None, rows, |_| scale)))?
            }
            Targets::LabelsOnGpu(labels) => return device_mismatch(labels),
            Targets::Probabilities(targets) => {
                read([logits, targets], |[x, t]| Ok(self.gradient(x, Some(t), rows, |_| scale)))?
            }
        };
        Ok([Some(tensor(gradient, logits.shape())?)])
    }
}

fn device_mismatch<T>(labels: &Tensor) -> Result<T> {
    bail!("labels on {:?} for logits that are not", labels.device().location())
}

/// The largest logit, the sum of e^(logit - largest), and the sum of logit - largest. NaN if any
/// logit is.
fn sums(x: &[f32]) -> (f32, f64, f64) {
    vectorised(
        #[inline(always)]
        || {
            // The large numbers are subtracted first: their difference is exact.
            let largest = maximum(x);
            let exponentials = sum(
                x,
                #[inline(always)]
                |x| exp(x - largest),
            );
            (
                largest,
                exponentials,
                sum(
                    x,
                    #[inline(always)]
                    |x| x - largest,
                ),
            )
        },
    )
}

fn label_loss(x: &[f32], label: usize, smoothing: f64) -> (f64, Row) {
    let (largest, exponentials, differences) = sums(x);
    let log_sum = exponentials.ln();
    let hit = log_sum - (f64::from(x[label]) - f64::from(largest));
    let row = Row { largest, factor: (1.0 / exponentials) as f32 };
    if smoothing == 0.0 {
        return (hit, row);
    }
    let mean = log_sum - differences / x.len() as f64;
    ((1.0 - smoothing) * hit + smoothing * mean, row)
}

fn soft_loss(x: &[f32], target: &[f32], smoothing: f64) -> (f64, Row) {
    let (largest, exponentials, differences) = sums(x);
    let (weight, hits) = vectorised(
        #[inline(always)]
        || {
            let hits = sum_of_pairs(
                x,
                target,
                #[inline(always)]
                |x, t| t * (x - largest),
            );
            (
                sum(
                    target,
                    #[inline(always)]
                    |t| t,
                ),
                hits,
            )
        },
    );
    let log_sum = exponentials.ln();
    let uniform = if smoothing == 0.0 { 0.0 } else { smoothing / x.len() as f64 * differences };
    let weight = (1.0 - smoothing) * weight + smoothing;
    let loss = weight * log_sum - (1.0 - smoothing) * hits - uniform;
    (loss, Row { largest, factor: (weight / exponentials) as f32 })
}

fn first_maximum(row: &[f32]) -> usize {
    let mut best = 0;
    for (class, value) in row.iter().enumerate() {
        if *value > row[best] {
            best = class;
        }
    }
    best
}

/// The class of each sample; `None` if it does not count.
fn checked_labels(logits: &Tensor, labels: &Tensor) -> Result<Vec<Option<usize>>> {
    checked(logits.dims2()?, labels)
}

/// The class of each of `n` samples.
pub(super) fn checked((n, classes): (usize, usize), labels: &Tensor) -> Result<Vec<Option<usize>>> {
    let labels: Vec<i64> = match labels.dtype() {
        DType::I64 => labels.to_vec1()?,
        _ => labels.to_vec1::<u32>()?.into_iter().map(i64::from).collect(),
    };
    if n == 0 || labels.len() != n {
        bail!("{} labels for {n} samples", labels.len());
    }
    let class = |label: i64| match usize::try_from(label) {
        Ok(class) if class < classes => Ok(Some(class)),
        _ if label == IGNORED_LABEL => Ok(None),
        _ => bail!("label {label} for a model with {classes} outputs"),
    };
    labels.into_iter().map(class).collect()
}

#[cfg(test)]
mod tests;
