//! The GPUs of this machine, looked at without a context on any of them.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::CUresult;

use crate::units::Bytes;

/// Name and memory of each GPU that CUDA shows.
pub(in crate::ops) fn visible() -> Result<Vec<(String, Bytes)>, String> {
    let listed = result::init().and_then(|()| list());
    match listed {
        Err(DriverError(CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(Vec::new()),
        other => other.map_err(|error| error.to_string()),
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
