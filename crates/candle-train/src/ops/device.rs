//! The GPUs of this machine: which there are, and how much of one is in use.

#[cfg(feature = "cuda")]
use std::path::Path;
#[cfg(feature = "cuda")]
use std::sync::OnceLock;

use candle_core::Device;
#[cfg(feature = "cuda")]
use cudarc::driver::result::{self, DriverError};
#[cfg(feature = "cuda")]
use cudarc::driver::sys::CUresult;
use serde::{Deserialize, Serialize};

#[cfg(feature = "cuda")]
use super::cuda::{Gpu, total_memory};
#[cfg(feature = "cuda")]
use super::nvml::Nvml;
#[cfg(feature = "cuda")]
use crate::cuda_libraries;
use crate::units::Bytes;

/// Use of a GPU by all processes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuUsage {
    /// Memory.
    pub memory: Bytes,
    /// Share of the last moments in which it computed, from 0 to 1; `None` if NVML does not tell.
    pub utilization: Option<f64>,
}

/// Present use of the GPU that `device` is; `None` on the CPU, or if the driver does not tell. Waits
/// for no kernel.
pub fn gpu_usage(device: &Device) -> Option<GpuUsage> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => {
            static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
            let gpu = Gpu::of_device(device).ok()?;
            let context = gpu.cuda().cuda_stream().context().clone();
            let (free, total) = context.mem_get_info().ok()?;
            let nvml = NVML.get_or_init(|| Nvml::start(cuda_libraries::nvml)).as_ref();
            let uuid = context.uuid().ok().map(|uuid| uuid.bytes.map(|byte| byte as u8));
            let utilization = nvml.zip(uuid).and_then(|(nvml, uuid)| nvml.utilization(uuid));
            Some(GpuUsage { memory: Bytes(total.saturating_sub(free) as u64), utilization })
        }
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
        Some(visible())
    }
    #[cfg(not(feature = "cuda"))]
    {
        None
    }
}

/// A file that exists wherever a driver is, whether its library can be found or not.
#[cfg(feature = "cuda")]
const DRIVER: &str = "/dev/nvidiactl";

/// Name and memory of each GPU that CUDA shows, if all libraries are there that a rank on it calls.
/// No context is made on any of them.
#[cfg(feature = "cuda")]
fn visible() -> Result<Vec<(String, Bytes)>, String> {
    match cuda_libraries::driver() {
        // A machine without a driver has no GPU for us, and that is no news.
        Err(_) if !Path::new(DRIVER).exists() => return Ok(Vec::new()),
        found => found?,
    }
    match result::init().and_then(|()| list()) {
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(Vec::new()),
        Err(error) => Err(error.to_string()),
        Ok(gpus) if gpus.is_empty() => Ok(gpus),
        Ok(gpus) => cuda_libraries::check().map(|()| gpus),
    }
}

#[cfg(feature = "cuda")]
fn list() -> Result<Vec<(String, Bytes)>, DriverError> {
    let gpu = |ordinal| {
        let device = result::device::get(ordinal)?;
        let memory = total_memory(device)?;
        Ok((result::device::get_name(device)?, Bytes(memory as u64)))
    };
    (0..result::device::get_count()?).map(gpu).collect()
}

/// GPU number `ordinal`, as ranks open it.
#[cfg(feature = "cuda")]
pub fn open_gpu(ordinal: usize) -> candle_core::Result<Device> {
    Ok(Gpu::open(ordinal)?.device())
}

/// Gives memory of a GPU that nothing uses any more, that of graphs too, back to the driver; there
/// is none on the CPU.
#[cfg(feature = "cuda")]
pub fn trim_gpu_memory(device: &Device) -> candle_core::Result<()> {
    match Gpu::of_device(device) {
        Ok(gpu) => gpu.free_memory().map(drop),
        Err(_) => Ok(()),
    }
}

/// The most bytes of the GPU's memory in use at a time since the last call; nothing is known on the
/// CPU.
#[cfg(feature = "cuda")]
pub fn take_gpu_peak(device: &Device) -> candle_core::Result<Option<Bytes>> {
    match Gpu::of_device(device) {
        Ok(gpu) => gpu.take_peak().map(|peak| Some(Bytes(peak))),
        Err(_) => Ok(None),
    }
}
