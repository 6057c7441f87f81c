//! Ranks that an MPI launcher started, through that launcher's own library, opened at run time: no
//! build needs MPI, and one program works with all of them. A build without the feature
//! `mpi` refuses to start it.
//!
//! | library | file | handles |
//! |---|---|---|
//! | Open MPI 4, 5 | `libmpi.so.40` | addresses of its own objects |
//! | MPICH, Intel MPI, Cray MPICH | `libmpi.so.12`, `libmpich.so.12` | numbers |
//! | the standard ABI of MPI 5 | `libmpi_abi.so.1` | small numbers, as addresses |
//!
//! Only the first rank of each machine talks to the others, by messages from rank to rank. We add,
//! in our order, and not `MPI_Iallreduce` in its own, unless the plan says so. No call blocks: all
//! are polled, so that every wait has a deadline.

mod launcher;
#[cfg(not(feature = "mpi"))]
mod absent;
#[cfg(feature = "mpi")]
mod library;
#[cfg(feature = "mpi")]
mod world;
#[cfg(feature = "mpi")]
mod end;
#[cfg(feature = "mpi")]
mod links;

#[cfg(not(feature = "mpi"))]
pub use absent::{abort, check, leave, open_mpi, start};
#[cfg(feature = "mpi")]
pub use end::abort;
pub use launcher::{Family, Launcher, StartError};
#[cfg(feature = "mpi")]
pub use world::{check, leave, start};

#[cfg(feature = "mpi")]
pub(super) use links::MpiLinks;
