//! The backend of a plan -> the group of a rank. A backend is a kind: it stands in one file with
//! what the plan must know of it ([`BackendFacts`](crate::plan::BackendFacts)) and how a rank joins
//! its group.

mod backend;
mod shm;
mod tcp;
#[cfg(feature = "mpi")]
mod mpi;
mod nccl;
mod registered;

pub use backend::{Backend, JoiningRank};
#[cfg(feature = "mpi")]
pub use mpi::open_mpi;
pub use registered::{BackendFamily, Backends, backend_facts, check_backend, join};
pub use shm::open_shm;
pub use tcp::open_tcp;
