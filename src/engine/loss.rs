//! The loss that the plan names, and the right answers beside it.

use candle_core::{Result, Tensor};

use crate::ops::{cross_entropy, mae, mse, score_classes, score_mae, score_mse, time_frequency};
use crate::plan::{LossKind, LossPlan};

/// Mean over the batch, scalar f32, in the graph.
pub(crate) fn mean(plan: &LossPlan, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
    match plan.kind {
        LossKind::CrossEntropy => {
            let (outputs, targets) = rows(outputs, targets)?;
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
            let right = score_classes(&outputs, &targets, 0.0)?.n_correct;
            Ok([right as u64, targets.elem_count() as u64])
        }
        LossKind::Mse | LossKind::Mae | LossKind::TimeFrequency => Ok([0, 0]),
    }
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
