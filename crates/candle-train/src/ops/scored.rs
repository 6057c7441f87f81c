//! Cross-entropy of labels on a GPU in one pass over the logits: loss, right answers and gradient,
//! which takes the place of the logits where nothing else reads them. Nothing here waits.

use candle_core::{CudaStorage, Result, Shape, Tensor, bail};

use super::chain;
use super::cuda::{self, Gpu, PassNumbers};
use super::loss::{Targets, checked};
use super::operation::{Gradients, OnGpu, Operation, SavedForBackward};

/// [`super::cross_entropy`] of logits (..., classes), f32 on a GPU, which are the caller's to give
/// away: they may be written over, and no other operation that learns may use them. Loss, right
/// answers and the `weight` of the pass are noted in `numbers`.
///
/// labels (...) u32 or i64 -> scalar f32; 0 if no label counts.
pub fn cross_entropy_scored(
    logits: &Tensor,
    labels: &Tensor,
    smoothing: f64,
    numbers: &PassNumbers,
    weight: f64,
) -> Result<Tensor> {
    let (targets, counted) = targets(logits, labels)?;
    let divisor = counted.max(1) as f64;
    let numbers = numbers.clone();
    let is_learnt = logits.track_op();
    let gradient = SavedForBackward::default();
    chain::extended(logits, |in_place| ScoredCrossEntropy {
        targets,
        smoothing,
        divisor,
        numbers,
        weight,
        is_learnt,
        in_place,
        gradient,
    })
}

/// Notes in `numbers` how many samples that count have their largest logit (the first, if several) at
/// their label. Arguments as [`cross_entropy_scored`].
pub fn count_right(logits: &Tensor, labels: &Tensor, numbers: &PassNumbers) -> Result<()> {
    let (targets, _) = targets(logits, labels)?;
    let logits = logits.contiguous()?;
    let scored = cuda::Scored {
        logits: cuda::Logits::of_positions(&logits)?,
        targets: &targets.on_gpu()?,
        gradient: None,
        smoothing: 0.0,
        divisor: 1.0,
    };
    scored.count(&Gpu::of_tensor(&logits)?, numbers)
}

/// Labels as they are compared, and how many count. Those on a GPU were checked when they were
/// copied there.
fn targets(logits: &Tensor, labels: &Tensor) -> Result<(Targets, usize)> {
    let classes = logits.dims().last().copied().unwrap_or(0);
    let labels = labels.flatten_all()?;
    if logits.elem_count() != labels.elem_count() * classes {
        bail!("{} labels for logits {:?}", labels.elem_count(), logits.dims());
    }
    if labels.device().is_cuda() {
        let n = labels.elem_count();
        return Ok((Targets::LabelsOnGpu(labels), n));
    }
    let labels = checked((labels.elem_count(), classes), &labels)?;
    let counted = labels.iter().flatten().count();
    Ok((Targets::Labels(labels), counted))
}

struct ScoredCrossEntropy {
    targets: Targets,
    smoothing: f64,
    /// Divisor of the sum of the losses.
    divisor: f64,
    numbers: PassNumbers,
    weight: f64,
    /// True if the gradient is wanted.
    is_learnt: bool,
    /// True if the gradient takes the place of the logits.
    in_place: bool,
    /// Otherwise it is here.
    gradient: SavedForBackward<()>,
}

impl Operation for ScoredCrossEntropy {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "cross-entropy and its gradient";

    fn backward(&self, _: [&Tensor; 1], _: &Tensor, _: Tensor) -> Gradients<Self> {
        bail!("{} was made for a GPU", Self::NAME)
    }
}

impl OnGpu for ScoredCrossEntropy {
    fn forward_on(&self, gpu: &Gpu, [logits]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        let values = cuda::of_tensor(logits)?;
        let mut gradient = (self.is_learnt && self.in_place).then_some(values);
        if self.is_learnt && !self.in_place {
            let own = gpu.tensor(logits.dtype(), logits.shape())?;
            gradient = Some(cuda::of_tensor(&own)?);
            self.gradient.keep_on_gpu(own);
        }
        let scored = cuda::Scored {
            logits: cuda::Logits::of_positions(logits)?,
            targets: &self.targets.on_gpu()?,
            gradient,
            smoothing: self.smoothing,
            divisor: self.divisor,
        };
        Ok((scored.loss(gpu, &self.numbers, self.weight)?, ().into()))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        [logits]: [&Tensor; 1],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let gradient = if self.in_place {
            logits.detach()
        } else {
            let Some(own) = self.gradient.on_gpu::<Tensor>() else {
                bail!("backward of a loss that was not computed")
            };
            own.clone()
        };
        cuda::Scored::pull(gpu, &gradient, &dy)?;
        Ok([Some(gradient)])
    }
}
