//! Where values lie in the GPU's memory.

use candle_core::{CudaStorage, DType, Layout, Result, Storage, Tensor, bail};

use crate::Precision;

/// Where contiguous values begin in the GPU's memory, and what they are.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct Address {
    pub(super) at: u64,
    pub(super) dtype: DType,
}

/// The number type of operands and results of matrix products under a precision.
pub(in crate::ops) struct Half;

impl Half {
    /// bf16, f16, or f32 itself.
    pub(in crate::ops) fn of(precision: Precision) -> DType {
        match precision {
            Precision::Fp32 => DType::F32,
            Precision::Bf16 => DType::BF16,
            Precision::Fp16 => DType::F16,
        }
    }
}

/// The values of a contiguous storage.
pub(in crate::ops) fn of_storage(storage: &CudaStorage, layout: &Layout) -> Result<Address> {
    let Some((start, _)) = layout.contiguous_offsets() else {
        bail!("a contiguous tensor is needed on the GPU, got {layout:?}")
    };
    let (at, dtype) = super::gpu::begin_of(storage)?;
    Ok(Address { at: at + (start * dtype.size_in_bytes()) as u64, dtype })
}

/// The values of a contiguous tensor of a GPU, which must outlive what is enqueued with them.
pub(in crate::ops) fn of_tensor(tensor: &Tensor) -> Result<Address> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => of_storage(storage, layout),
        _ => bail!("a tensor of the GPU is needed"),
    }
}
