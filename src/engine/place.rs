//! Where a batch goes before the model sees it.

use candle_core::{Result, Tensor};

use crate::data::Batch;
use crate::engine::{Engine, loss};
#[cfg(feature = "cuda")]
use crate::ops::cuda;
use crate::plan::SourcePlan;

impl Engine {
    /// Inputs and targets where the model computes. What only says which rows to read or which class is right, tokens and
    /// labels, stays in the CPU's memory: operations check it there and hand over what their kernels need.
    pub(super) fn placed(&self, batch: &Batch) -> Result<(Tensor, Tensor)> {
        let source = &self.plan.data.source;
        let tokens = matches!(
            source,
            SourcePlan::Tokens { .. } | SourcePlan::Text { .. } | SourcePlan::Instructions(_)
        );
        let inputs = if tokens { batch.inputs.clone() } else { self.moved(&batch.inputs)? };
        let targets = if loss::is_classifier(&self.plan.loss) {
            batch.targets.clone()
        } else {
            self.moved(&batch.targets)?
        };
        Ok((inputs, targets))
    }

    fn moved(&self, tensor: &Tensor) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if self.device.is_cuda() && tensor.device().is_cpu() {
            return cuda::to_gpu(&cuda::Gpu::of_device(&self.device)?, tensor);
        }
        tensor.to_device(&self.device)
    }
}
