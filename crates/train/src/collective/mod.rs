//! One tensor per rank -> their sum. One trait, [`Collective`], with the group of a rank alone and
//! those of the registered [`Backends`]: `shm`, `tcp` and `mpi` (several machines, whose ranks add
//! in shared memory first, and whose first ranks are linked by connections or by the library of an
//! MPI launcher) and, with the feature `cuda`, `nccl`.
//!
//! Every rank makes the same calls in the same order. Every wait has a deadline; a failed
//! collective is final for its group. Sums are taken in f32 in a fixed binary tree over ranks, so
//! that all ranks hold the same bits.
//!
//! With W ranks, S bytes per rank and pieces of P = 512 KiB, `shm` takes per rank:
//!
//! | call         | waits for all | bytes read and written                     | algorithm                        |
//! |--------------|---------------|--------------------------------------------|----------------------------------|
//! | `all_reduce` | 2             | S/W from W ranks, S/W to W ranks: 2S       | each rank reduces its share      |
//! | `reduce_scatter` | 2         | own part from W ranks, S/W to one: 2S at most | each rank reduces its part |
//! | `broadcast`  | S/P, 1 or more | rank 0 writes S, the others read S         | staging halves, write and read overlap |
//! | `all_gather` | S/P, 1 or more | S written, the sum of the others' S read   | staging halves                   |
//! | `barrier`    | 1             | 0                                          |                                  |

mod call;
mod error;
mod reduce;
mod shared_mapping;
mod gradient_buffer;
mod group;
#[cfg(any(feature = "cuda", test))]
mod device_group;
mod shm_barrier;
mod shm;
mod message;
mod links;
mod exchange;
mod inter_node_group;
mod hierarchical_group;
mod compressed;
pub mod mpi;
#[cfg(feature = "cuda")]
mod nccl;
mod backends;

#[cfg(feature = "mpi")]
pub use backends::open_mpi;
pub use backends::{
    Backend, BackendFamily, Backends, JoiningRank, backend_facts, check_backend, join, open_shm,
    open_tcp,
};
pub use call::{Call, Op};
pub use compressed::compressed;
pub use error::{Error, MissingRank};
pub use gradient_buffer::{Elements, GradientBuffer};
pub use group::{Collective, alone};
#[cfg(any(feature = "cuda", test))]
pub(crate) use group::{DeviceExchange, OnGpu};
#[cfg(not(feature = "mpi"))]
pub use mpi::open_mpi;
pub use reduce::tree_sum;
