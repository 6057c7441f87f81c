//! Which GPUs there are.

use crate::units::Bytes;

/// Name and memory of the GPUs that CUDA shows, in its order, or why it shows none; `None` in a
/// program without CUDA. No GPU is touched.
///
/// # Errors
///
/// The driver does not answer, in its words. A machine without a GPU is no error.
#[cfg(not(feature = "cuda"))]
pub fn visible_gpus() -> Option<Result<Vec<(String, Bytes)>, String>> {
    None
}

/// Name and memory of the GPUs that CUDA shows, in its order, or why it shows none; `None` in a
/// program without CUDA. No GPU is touched.
///
/// # Errors
///
/// The driver does not answer, in its words. A machine without a GPU is no error.
#[cfg(feature = "cuda")]
pub fn visible_gpus() -> Option<Result<Vec<(String, Bytes)>, String>> {
    Some(super::cuda::visible())
}

/// GPU number `ordinal`, as ranks open it.
///
/// # Errors
///
/// The driver's.
#[cfg(feature = "cuda")]
pub fn open_gpu(ordinal: usize) -> candle_core::Result<candle_core::Device> {
    Ok(super::cuda::Gpu::open(ordinal)?.device())
}

/// The most bytes of the GPU's memory in use at a time since the last call; nothing is known on the
/// CPU.
///
/// # Errors
///
/// The driver's.
#[cfg(feature = "cuda")]
pub fn take_gpu_peak(device: &candle_core::Device) -> candle_core::Result<Option<Bytes>> {
    match super::cuda::Gpu::of_device(device) {
        Ok(gpu) => gpu.take_peak().map(|peak| Some(Bytes(peak))),
        Err(_) => Ok(None),
    }
}
