//! The loss that the plan names, and the right answers beside it.

use candle_core::{Result, Tensor};

use crate::ops::{cross_entropy, mae, mse, score_classes};
use crate::plan::{LossKind, LossPlan};

/// Mean over the batch, scalar f32, in the graph.
pub(crate) fn mean(plan: &LossPlan, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
    match plan.kind {
        LossKind::CrossEntropy => cross_entropy(outputs, targets, plan.label_smoothing),
        LossKind::Mse => mse(outputs, targets),
        LossKind::Mae => mae(outputs, targets),
    }
}

/// Number of samples whose largest output is that of their label; 0 for regression.
pub(crate) fn correct(plan: &LossPlan, outputs: &Tensor, targets: &Tensor) -> Result<u64> {
    match plan.kind {
        LossKind::CrossEntropy => Ok(score_classes(outputs, targets, 0.0)?.n_correct as u64),
        LossKind::Mse | LossKind::Mae => Ok(0),
    }
}

/// Whether answers can be right or wrong.
pub(crate) fn is_classifier(plan: &LossPlan) -> bool {
    plan.kind == LossKind::CrossEntropy
}

/// The value of a scalar. On a GPU this waits for the device: the one synchronisation of a pass.
pub(crate) fn scalar(loss: &Tensor) -> Result<f32> {
    loss.to_scalar()
}
