//! Copies a batch to the device of the model.

use candle_core::{Result, Tensor, bail};

use crate::data::Batch;
use crate::engine::Engine;
use crate::failpoint;
#[cfg(feature = "cuda")]
use crate::ops::cuda;
use crate::plan::Modality;

/// The tensors of a batch that go to the device of the model.
#[derive(Clone, Copy)]
pub struct DeviceTensors {
    inputs: bool,
}

impl DeviceTensors {
    /// Returns two flags: true if the inputs, and if the targets, of `batch` go there.
    pub fn of(self, batch: &Batch) -> [bool; 2] {
        [self.inputs, batch.targets.dtype().is_float()]
    }
}

/// Inputs and targets, where the model reads them.
#[derive(Clone)]
pub(super) struct DeviceBatch {
    pub(super) inputs: Tensor,
    pub(super) targets: Tensor,
}

impl Engine {
    /// Inputs and targets where the model computes. What only says which rows to read or which
    /// class is right, tokens and labels, stays in the CPU's memory: operations check it there and
    /// hand over what their kernels need.
    pub(super) fn batch_on_device(&self, batch: &Batch) -> Result<DeviceBatch> {
        if failpoint::runs_out("memory") {
            // As candle wraps the driver's.
            bail!("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")");
        }
        let [inputs, targets] = self.device_tensors().of(batch);
        let to = |moves, tensor: &Tensor| {
            if moves { self.to_model_device(tensor) } else { Ok(tensor.clone()) }
        };
        Ok(DeviceBatch {
            inputs: to(inputs, &batch.inputs)?,
            targets: to(targets, &batch.targets)?,
        })
    }

    /// Inputs without targets, where the model reads them.
    pub(super) fn inputs_on_device(&self, inputs: &Tensor) -> Result<Tensor> {
        if self.device_tensors().inputs { self.to_model_device(inputs) } else { Ok(inputs.clone()) }
    }

    fn device_tensors(&self) -> DeviceTensors {
        let is_text = self.plan.data.source.modality == Modality::Text;
        DeviceTensors { inputs: !is_text }
    }

    /// The GPU on which the model computes, and which of a batch's tensors go there; `None` on the
    /// CPU.
    #[cfg(feature = "cuda")]
    pub fn destination(&self) -> Option<(cuda::Gpu, DeviceTensors)> {
        Some((cuda::Gpu::of_device(&self.device).ok()?, self.device_tensors()))
    }

    fn to_model_device(&self, tensor: &Tensor) -> Result<Tensor> {
        #[cfg(feature = "cuda")]
        if self.device.is_cuda() && tensor.device().is_cpu() {
            return cuda::to_gpu(&cuda::Gpu::of_device(&self.device)?, tensor);
        }
        tensor.to_device(&self.device)
    }
}
