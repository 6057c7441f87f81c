//! Which GPUs there are, and what of one is in use.

use candle_core::Device;
use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// What of a GPU is in use, by all processes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuUsage {
    /// Memory.
    pub memory: Bytes,
    /// Share of the last moments in which it computed, from 0 to 1; `None` if NVML does not tell.
    pub utilization: Option<f64>,
}

/// What is in use of the GPU that `device` is; `None` on the CPU, or if the driver does not tell.
pub fn gpu_usage(device: &Device) -> Option<GpuUsage> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => super::cuda::Gpu::of_device(device).ok()?.usage(),
        _ => None,
    }
}

/// Name and memory of the GPUs that CUDA shows, in its order, or why it shows none; `None` in a
/// program without CUDA. No GPU is touched.
///
/// # Errors
///
/// The driver does not answer, in its words. A machine without a GPU is no error.
pub fn visible_gpus() -> Option<Result<Vec<(String, Bytes)>, String>> {
    #[cfg(feature = "cuda")]
    {
        Some(super::cuda::visible())
    }
    #[cfg(not(feature = "cuda"))]
    {
        None
    }
}

/// GPU number `ordinal`, as ranks open it.
#[cfg(feature = "cuda")]
pub fn open_gpu(ordinal: usize) -> candle_core::Result<Device> {
    Ok(super::cuda::Gpu::open(ordinal)?.device())
}

/// Gives memory of a GPU that nothing uses any more, that of graphs too, back to the driver; there
/// is none on the CPU.
#[cfg(feature = "cuda")]
pub fn trim_gpu_memory(device: &Device) -> candle_core::Result<()> {
    match super::cuda::Gpu::of_device(device) {
        Ok(gpu) => gpu.free_memory().map(drop),
        Err(_) => Ok(()),
    }
}

/// The most bytes of the GPU's memory in use at a time since the last call; nothing is known on the
/// CPU.
#[cfg(feature = "cuda")]
pub fn take_gpu_peak(device: &Device) -> candle_core::Result<Option<Bytes>> {
    match super::cuda::Gpu::of_device(device) {
        Ok(gpu) => gpu.take_peak().map(|peak| Some(Bytes(peak))),
        Err(_) => Ok(None),
    }
}
