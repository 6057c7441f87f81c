//! What of a GPU is in use, by all processes.

use std::sync::OnceLock;

use super::Gpu;
use crate::cuda_libraries;
use crate::ops::device::GpuUsage;
use crate::ops::nvml::Nvml;
use crate::units::Bytes;

/// Opened when it is first asked.
static NVML: OnceLock<Option<Nvml>> = OnceLock::new();

impl Gpu {
    /// What is in use of it now; `None` if the driver does not tell. Waits for no kernel.
    pub(in crate::ops) fn usage(&self) -> Option<GpuUsage> {
        let context = self.cuda().cuda_stream().context().clone();
        let (free, total) = context.mem_get_info().ok()?;
        let nvml = NVML.get_or_init(|| Nvml::start(cuda_libraries::nvml)).as_ref();
        let uuid = context.uuid().ok().map(|uuid| uuid.bytes.map(|byte| byte as u8));
        let utilization = nvml.zip(uuid).and_then(|(nvml, uuid)| nvml.utilization(uuid));
        Some(GpuUsage { memory: Bytes(total.saturating_sub(free) as u64), utilization })
    }
}
