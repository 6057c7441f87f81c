//! Where a batch goes before the model sees it.

use candle_core::{Result, Tensor};

use crate::data::Batch;
use crate::engine::{Engine, loss};
use crate::plan::SourcePlan;

impl Engine {
    /// Inputs and targets where the model computes. What only says which rows to read or which class is right, tokens and
    /// labels, stays in the CPU's memory: operations check it there and hand over what their kernels need.
    pub(super) fn placed(&self, batch: &Batch) -> Result<(Tensor, Tensor)> {
        let source = &self.plan.data.source;
        let tokens = matches!(source, SourcePlan::Tokens { .. } | SourcePlan::Text { .. });
        let inputs =
            if tokens { batch.inputs.clone() } else { batch.inputs.to_device(&self.device)? };
        let targets = if loss::is_classifier(&self.plan.loss) {
            batch.targets.clone()
        } else {
            batch.targets.to_device(&self.device)?
        };
        Ok((inputs, targets))
    }
}
