//! The device of a rank: the CPU, or the GPU that the plan gives it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use candle_core::Device;

use crate::collective::{self, Backends, Collective, JoiningRank};
use crate::engine;
#[cfg(feature = "cuda")]
use crate::files;
#[cfg(feature = "cuda")]
use crate::ops::cuda::{Gpu, keep_kernels_in};
use crate::plan::Plan;
use crate::transport::Peer;
use crate::units::Rank;
use crate::worker::Error;

/// Descriptors with which a rank joins its group.
#[derive(Default)]
pub(crate) struct GroupHandles {
    /// The memory that ranks of one machine share.
    pub(crate) shm: Option<OwnedFd>,
    /// Connections to the other ranks.
    pub(crate) peers: Vec<Peer>,
}

/// The device of a rank, open.
pub(crate) struct RankDevice {
    /// Device of its parameters.
    pub(crate) device: Device,
    rank: Rank,
    #[cfg(feature = "cuda")]
    gpu: Option<Gpu>,
}

impl RankDevice {
    /// Opens the device of `rank`.
    #[cfg(feature = "cuda")]
    pub(crate) fn open(plan: &Plan, rank: Rank) -> Result<Self, Error> {
        if let Some(folder) = files::user_cache() {
            keep_kernels_in(folder.join("kernels"));
        }
        let gpu = plan.distributed.gpu(rank).map(Gpu::open).transpose().map_err(refused)?;
        let device = gpu.as_ref().map_or(Device::Cpu, Gpu::device);
        Ok(Self { device, rank, gpu })
    }

    /// Opens the device of `rank`: a plan with GPUs comes from another build.
    #[cfg(not(feature = "cuda"))]
    pub(crate) fn open(plan: &Plan, rank: Rank) -> Result<Self, Error> {
        match plan.distributed.gpu(rank) {
            None => Ok(Self { device: Device::Cpu, rank }),
            Some(gpu) => {
                let what =
                    format!("the plan wants GPU {gpu}, and this ddprun was built without `cuda`");
                Err(refused(candle_core::Error::Msg(what)))
            }
        }
    }

    /// Joins the group of the plan.
    pub(crate) fn join(
        &self,
        plan: &Plan,
        GroupHandles { shm, peers }: GroupHandles,
        backends: &Backends,
    ) -> Result<Arc<dyn Collective>, Error> {
        let joining = JoiningRank::new(&plan.distributed, self.rank, shm);
        let joining = JoiningRank { peers, ..joining };
        #[cfg(feature = "cuda")]
        let joining = JoiningRank { gpu: self.gpu.as_ref(), ..joining };
        Ok(collective::join(backends, joining)?)
    }
}

fn refused(source: candle_core::Error) -> Error {
    engine::Error::Tensor { phase: "first", step: 0, source }.into()
}
