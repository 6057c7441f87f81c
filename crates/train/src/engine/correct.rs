//! Answers that are right: what the accuracy of a step counts.

use candle_core::{D, Device, Result, Tensor};

use crate::loss::{counted, rows};
use crate::ops::count_correct;
use crate::plan::LossPlan;

/// Number of answers whose largest output is that of their label, and of all answers; 0 for
/// regression.
pub(super) fn correct(plan: &LossPlan, outputs: &Tensor, targets: &Tensor) -> Result<[u64; 2]> {
    if !plan.has_classes() {
        return Ok([0, 0]);
    }
    if targets.dtype().is_float() {
        // Of a mixture the class with the larger share is right.
        let labels = targets.argmax(D::Minus1)?.to_device(&Device::Cpu)?;
        return Ok([count_correct(outputs, &labels)? as u64, labels.elem_count() as u64]);
    }
    let (outputs, targets) = rows(outputs, targets)?;
    let right = count_correct(&outputs, &targets)?;
    Ok([right as u64, counted(&targets)? as u64])
}
