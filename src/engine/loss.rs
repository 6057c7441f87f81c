//! The loss that the plan names, and the right answers beside it.

use candle_core::{DType, Result, Tensor};

use crate::ops::{
    IGNORED_LABEL, count_correct, cross_entropy, cross_entropy_sum, mae, mse, score_mae, score_mse,
    time_frequency,
};
use crate::plan::{LossKind, LossPlan};

/// Mean over what counts of the batch, scalar f32, in the graph; 0 if nothing counts.
pub(crate) fn mean(plan: &LossPlan, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
    match plan.kind {
        LossKind::CrossEntropy => {
            let (outputs, targets) = rows(outputs, targets)?;
            if counted(&targets)? == 0 {
                return Ok(cross_entropy_sum(&outputs, &targets, plan.label_smoothing)?.0);
            }
            cross_entropy(&outputs, &targets, plan.label_smoothing)
        }
        LossKind::Mse => mse(outputs, targets),
        LossKind::Mae => mae(outputs, targets),
        LossKind::TimeFrequency => time_frequency(outputs, targets, plan.alpha),
    }
}

/// Number of answers whose largest output is that of their label, and of all answers; 0 for regression.
pub(crate) fn correct(plan: &LossPlan, outputs: &Tensor, targets: &Tensor) -> Result<[u64; 2]> {
    match plan.kind {
        LossKind::CrossEntropy => {
            let (outputs, targets) = rows(outputs, targets)?;
            let right = count_correct(&outputs, &targets)?;
            Ok([right as u64, counted(&targets)? as u64])
        }
        LossKind::Mse | LossKind::Mae | LossKind::TimeFrequency => Ok([0, 0]),
    }
}

/// How much a batch of `samples` counts beside others: by its labels that count, so that the mean over batches is the
/// mean over labels; in samples, of which each that is whole counts 1.
pub(crate) fn weight(plan: &LossPlan, targets: &Tensor, samples: usize) -> Result<f64> {
    if plan.kind != LossKind::CrossEntropy || targets.dtype() != DType::I64 {
        return Ok(samples as f64);
    }
    Ok((samples * counted(targets)?) as f64 / targets.elem_count().max(1) as f64)
}

/// Labels that are not [`IGNORED_LABEL`], which only i64 labels can be.
fn counted(targets: &Tensor) -> Result<usize> {
    if targets.dtype() != DType::I64 {
        return Ok(targets.elem_count());
    }
    let labels = targets.flatten_all()?.to_vec1::<i64>()?;
    Ok(labels.into_iter().filter(|&label| label != IGNORED_LABEL).count())
}

/// Each token of a text as a row of its own: (n, tokens, classes) and (n, tokens) -> (rows, classes) and (rows).
fn rows(outputs: &Tensor, targets: &Tensor) -> Result<(Tensor, Tensor)> {
    if targets.rank() < 2 {
        return Ok((outputs.clone(), targets.clone()));
    }
    Ok((outputs.flatten_to(1)?, targets.flatten_all()?))
}

/// Mean squared and mean absolute error over the batch; `None` for classes.
pub(crate) fn errors(
    plan: &LossPlan,
    outputs: &Tensor,
    targets: &Tensor,
) -> Result<Option<[f64; 2]>> {
    if is_classifier(plan) {
        return Ok(None);
    }
    let mean = |scores: Vec<f64>| scores.iter().sum::<f64>() / scores.len() as f64;
    let (squared, absolute) = (score_mse(outputs, targets)?, score_mae(outputs, targets)?);
    Ok(Some([mean(squared), mean(absolute)]))
}

/// Whether answers can be right or wrong.
pub(crate) fn is_classifier(plan: &LossPlan) -> bool {
    plan.kind == LossKind::CrossEntropy
}

/// The value of a scalar. On a GPU this waits for the device: the one synchronisation of a pass.
pub(crate) fn scalar(loss: &Tensor) -> Result<f32> {
    loss.to_scalar()
}
