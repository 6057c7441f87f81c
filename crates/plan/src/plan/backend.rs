//! Backends as data: what each declares, and the one that a plan uses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plan::shm_layout::Mapping;
use train_numbers::units::{Bytes, WorldSize};

/// The name in the plan of a world of one, which exchanges nothing.
const SOLO: &str = "solo";

/// Properties that a backend declares: where it can be used, and what it needs there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendFacts {
    /// Name in `distributed.backend`.
    pub name: String,
    /// Memory that its ranks share on one machine; `None` = it cannot be used on one machine.
    pub one_machine: Option<SharedMemory>,
    /// Memory that the ranks of each of several machines share; `None` = it connects no machines.
    pub several_machines: Option<SharedMemory>,
    /// True if a library can add up gradients: `all_reduce = "library"`.
    pub sums_by_library: bool,
    /// True if `backend = "auto"` may choose it.
    pub is_automatic: bool,
    /// Capabilities that the rest of the program depends on.
    pub capabilities: BackendCapabilities,
}

/// Memory that the ranks of a machine share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedMemory {
    /// Nothing.
    None,
    /// A staging area of each rank, through which tensors pass in pieces.
    Staging,
    /// Staging areas, and the gradients of each rank.
    Gradients,
}

/// Capabilities of a backend that the rest of the program depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendCapabilities {
    /// Display name: "NCCL"; `None` = the memory that its ranks share is shown instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// True if an MPI launcher must start the ranks, and its library connects them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub meets_by_mpi: bool,
    /// True if gradients are summed in the memory of GPUs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sums_on_gpus: bool,
    /// Copies of a bucket that each rank keeps to send and to receive it.
    #[serde(skip_serializing_if = "is_zero")]
    pub bucket_copies: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl BackendCapabilities {
    /// True for the default: no special capability.
    pub(super) fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

impl BackendFacts {
    /// A backend of this name that connects the ranks of one machine by its own means.
    pub fn named(name: &str) -> Self {
        let label = Some(name.to_owned());
        Self {
            name: name.to_owned(),
            one_machine: Some(SharedMemory::None),
            several_machines: None,
            sums_by_library: false,
            is_automatic: false,
            capabilities: BackendCapabilities { label, ..BackendCapabilities::default() },
        }
    }

    /// True if it connects the ranks of so many machines.
    pub(super) fn reaches(&self, nodes: u32) -> bool {
        if nodes == 1 { self.one_machine.is_some() } else { self.several_machines.is_some() }
    }

    /// The backend in a plan, for a `world` on so many machines and trained parameters of these
    /// `lengths`.
    pub(super) fn plan(&self, world: WorldSize, nodes: u32, lengths: &[usize]) -> BackendPlan {
        let shared = self.one_machine.unwrap_or(SharedMemory::None);
        let mapping = shared.mapping(world, lengths).filter(|_| nodes == 1);
        BackendPlan { name: self.name.clone(), may_share: shared != SharedMemory::None, mapping }
    }
}

impl SharedMemory {
    /// Bytes that `world` ranks with parameters of these `lengths` share, if they do.
    pub(super) fn mapping(self, world: WorldSize, lengths: &[usize]) -> Option<Bytes> {
        match self {
            Self::None => None,
            Self::Staging => Some(Mapping::new(world, []).total()),
            Self::Gradients => Some(Mapping::new(world, lengths.iter().copied()).total()),
        }
    }
}

/// The backend of a plan.
///
/// It is written by its name, `"tcp"`, and one whose ranks may share memory with that:
/// `{"shm":{"mapping":4096}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BackendJson", into = "BackendJson")]
pub struct BackendPlan {
    /// Name of the backend.
    pub name: String,
    /// True if its ranks share memory where all are on one machine.
    pub may_share: bool,
    /// Bytes of the mapping that all ranks share, if they do.
    pub mapping: Option<Bytes>,
}

impl BackendPlan {
    /// The backend of a world of one, which exchanges nothing.
    pub fn alone() -> Self {
        Self { name: SOLO.to_owned(), may_share: false, mapping: None }
    }

    /// The backend `name`, whose ranks share a mapping of this size if all are on one machine.
    pub fn sharing(name: &str, mapping: Option<Bytes>) -> Self {
        Self { name: name.to_owned(), may_share: true, mapping }
    }
}

/// JSON of a backend.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum BackendJson {
    Name(String),
    Sharing(BTreeMap<String, Shared>),
}

#[derive(Serialize, Deserialize)]
struct Shared {
    mapping: Option<Bytes>,
}

impl From<BackendPlan> for BackendJson {
    fn from(plan: BackendPlan) -> Self {
        let BackendPlan { name, may_share, mapping } = plan;
        if may_share {
            Self::Sharing([(name, Shared { mapping })].into())
        } else {
            Self::Name(name)
        }
    }
}

impl TryFrom<BackendJson> for BackendPlan {
    type Error = &'static str;

    fn try_from(json: BackendJson) -> Result<Self, Self::Error> {
        match json {
            BackendJson::Name(name) => Ok(Self { name, may_share: false, mapping: None }),
            BackendJson::Sharing(backends) => match backends.into_iter().next() {
                Some((name, Shared { mapping })) => Ok(Self { name, may_share: true, mapping }),
                None => Err("a plan has a backend"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_written_by_its_name_and_by_the_memory_that_its_ranks_may_share() {
        let named = |name: &str| BackendPlan { name: name.to_owned(), ..BackendPlan::alone() };
        for (plan, text) in [
            (BackendPlan::alone(), r#""solo""#),
            (named("tcp"), r#""tcp""#),
            (named("mpi"), r#""mpi""#),
            (BackendPlan::sharing("shm", Some(Bytes(4096))), r#"{"shm":{"mapping":4096}}"#),
            (BackendPlan::sharing("nccl", Some(Bytes(1024))), r#"{"nccl":{"mapping":1024}}"#),
            (BackendPlan::sharing("nccl", None), r#"{"nccl":{"mapping":null}}"#),
        ] {
            assert_eq!(serde_json::to_string(&plan).unwrap(), text);
            assert_eq!(serde_json::from_str::<BackendPlan>(text).unwrap(), plan);
        }
        assert!(serde_json::from_str::<BackendPlan>("{}").is_err());
    }
}
