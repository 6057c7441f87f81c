//! `nccl`: gradients are summed in the GPUs' memory; all else goes through memory that the ranks of
//! one machine share, or between machines as with `tcp`. Without the feature `cuda` there is only
//! its name.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "cuda")]
use crate::collective::backends::tcp::through_connections;
use crate::collective::backends::{Backend, JoiningRank};
#[cfg(feature = "cuda")]
use crate::collective::device_group::Control;
#[cfg(feature = "cuda")]
use crate::collective::nccl;
use crate::collective::{Collective, Error};
use crate::config::kind::Kind;
#[cfg(feature = "cuda")]
use crate::ops::cuda::Gpu;
use crate::plan::{BackendCapabilities, BackendFacts, SharedMemory};

/// GPUs.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NcclBackend {}

impl Kind for NcclBackend {
    const NAME: &'static str = "nccl";
}

impl Backend for NcclBackend {
    fn facts(&self) -> BackendFacts {
        let label = Some("NCCL".to_owned());
        BackendFacts {
            one_machine: Some(SharedMemory::Staging),
            several_machines: Some(SharedMemory::Staging),
            is_automatic: true,
            capabilities: BackendCapabilities { label, sums_on_gpus: true, ..Default::default() },
            ..BackendFacts::named(Self::NAME)
        }
    }

    #[cfg(feature = "cuda")]
    fn check(&self) -> Result<(), String> {
        crate::cuda_libraries::check_nccl()
    }

    #[cfg(feature = "cuda")]
    fn open(&self, joining: JoiningRank<'_>) -> Result<Arc<dyn Collective>, Error> {
        let Some(gpu) = joining.gpu else { return Err(no_gpu()) };
        let plan = joining.plan;
        let control = control(joining)?;
        if plan.nccl_shares_a_gpu() {
            nccl::check_sharing()?;
        } else if plan.nodes > 1 {
            // Only the ranks together know the GPUs of all machines.
            check_different_gpus(&control.all_gather(&nccl::identity(gpu))?)
                .map_err(|what| Error::Nccl { what })?;
        }
        Ok(Arc::new(nccl::open(gpu, control, plan.comm_hook, plan.timeout)?))
    }

    #[cfg(not(feature = "cuda"))]
    fn open(&self, _: JoiningRank<'_>) -> Result<Arc<dyn Collective>, Error> {
        Err(no_gpu())
    }
}

fn no_gpu() -> Error {
    Error::mapping("`nccl` is opened on a GPU")
}

/// Joins ranks that a launcher started, each of which knows its own GPU only: through NCCL if they
/// find that their GPUs differ, else through the CPUs' memory.
#[cfg(feature = "cuda")]
pub(super) fn open_if_apart(
    gpu: &Gpu,
    joining: JoiningRank<'_>,
) -> Result<Arc<dyn Collective>, Error> {
    let plan = joining.plan;
    let control = control(joining)?;
    match check_different_gpus(&control.all_gather(&nccl::identity(gpu))?) {
        Err(_) => Ok(control),
        Ok(()) => Ok(Arc::new(nccl::open(gpu, control, plan.comm_hook, plan.timeout)?)),
    }
}

/// The group that NCCL's is controlled by.
#[cfg(feature = "cuda")]
fn control(joining: JoiningRank<'_>) -> Result<Arc<dyn Control>, Error> {
    match joining.plan.backend.mapping {
        Some(_) => Ok(Arc::new(joining.shm()?)),
        None => through_connections(joining),
    }
}

/// Checks that all ranks compute on different GPUs; the error says why they cannot use NCCL. Each
/// rank sends the identity of its GPU, or nothing if it has no NCCL.
#[cfg(any(feature = "cuda", test))]
fn check_different_gpus(gpus: &[Vec<u8>]) -> Result<(), String> {
    if let Some(rank) = gpus.iter().position(Vec::is_empty) {
        return Err(format!(
            "rank {rank} has no NCCL, or its driver does not tell which GPU it has"
        ));
    }
    for (rank, gpu) in gpus.iter().enumerate() {
        if let Some(earlier) = gpus[..rank].iter().position(|other| other == gpu) {
            return Err(format!(
                "ranks {earlier} and {rank} compute on the same GPU, which it refuses"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check_different_gpus;

    #[test]
    fn gpus_differ_if_all_are_known_and_none_occurs_twice() {
        let check = |names: &[&str]| {
            let gpus: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            check_different_gpus(&gpus)
        };
        assert_eq!(check(&["a", "c", "b"]), Ok(()));
        let shared = check(&["a", "b", "a"]).unwrap_err();
        assert!(shared.starts_with("ranks 0 and 2 compute on the same GPU"), "{shared}");
        let without = check(&["a", ""]).unwrap_err();
        assert!(without.starts_with("rank 1 has no NCCL"), "{without}");
    }
}
