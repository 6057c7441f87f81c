//! The GPUs of this machine, looked at without a context on any of them.

use std::path::Path;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUresult;

use crate::cuda_libraries;
use crate::units::Bytes;

/// Where a driver is, so is this, whether its library can be found or not.
const DRIVER: &str = "/dev/nvidiactl";

/// Name and memory of each GPU that CUDA shows, if all libraries are there that a rank on it calls.
pub(in crate::ops) fn visible() -> Result<Vec<(String, Bytes)>, String> {
    match cuda_libraries::driver() {
        // A machine without a driver has no GPU for us, and that is no news.
        Err(_) if !Path::new(DRIVER).exists() => return Ok(Vec::new()),
        found => found?,
    }
    let listed = result::init().and_then(|()| list());
    match listed {
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(Vec::new()),
        Err(error) => Err(error.to_string()),
        Ok(gpus) if gpus.is_empty() => Ok(gpus),
        Ok(gpus) => cuda_libraries::check().map(|()| gpus),
    }
}

fn list() -> Result<Vec<(String, Bytes)>, DriverError> {
    let gpu = |ordinal| {
        let device = result::device::get(ordinal)?;
        let memory = super::gpu::total_memory(device)?;
        Ok((result::device::get_name(device)?, Bytes(memory as u64)))
    };
    (0..result::device::get_count()?).map(gpu).collect()
}
