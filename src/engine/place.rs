//! Where a batch goes before the model sees it.

use candle_core::{Result, Tensor, bail};

use crate::data::Batch;
use crate::engine::Engine;
use crate::failpoint;
#[cfg(feature = "cuda")]
use crate::ops::cuda;
use crate::plan::SourcePlan;

impl Engine {
    /// Inputs and targets where the model computes. What only says which rows to read or which class is right, tokens and
    /// labels, stays in the CPU's memory: operations check it there and hand over what their kernels need.
    pub(super) fn placed(&self, batch: &Batch) -> Result<(Tensor, Tensor)> {
        if failpoint::runs_out("memory") {
            // As candle wraps the driver's.
            bail!("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")");
        }
        let (inputs, targets) = self.moves();
        let place =
            |moves, tensor: &Tensor| if moves { self.moved(tensor) } else { Ok(tensor.clone()) };
        Ok((place(inputs, &batch.inputs)?, place(targets, &batch.targets)?))
    }

    /// Whether inputs and targets go where the model computes.
    fn moves(&self) -> (bool, bool) {
        let source = &self.plan.data.source;
        let tokens = matches!(
            source,
            SourcePlan::Tokens { .. } | SourcePlan::Text { .. } | SourcePlan::Instructions(_)
        );
        (!tokens, !self.plan.loss.has_classes())
    }

    /// The GPU on which the model computes, and which of a batch's tensors, inputs and targets, go there; `None` on the CPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn destination(&self) -> Option<(cuda::Gpu, (bool, bool))> {
        Some((cuda::Gpu::of_device(&self.device).ok()?, self.moves()))
    }

    fn moved(&self, tensor: &Tensor) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if self.device.is_cuda() && tensor.device().is_cpu() {
            return cuda::to_gpu(&cuda::Gpu::of_device(&self.device)?, tensor);
        }
        tensor.to_device(&self.device)
    }
}
