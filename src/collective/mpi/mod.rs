//! Ranks that an MPI launcher started, through that launcher's own library, opened at run time: no
//! build needs MPI, and one program works with all of them.
//!
//! | library | file | handles |
//! |---|---|---|
//! | Open MPI 4, 5 | `libmpi.so.40` | addresses of its own objects |
//! | MPICH, Intel MPI, Cray MPICH | `libmpi.so.12`, `libmpich.so.12` | numbers |
//! | the standard ABI of MPI 5 | `libmpi_abi.so.1` | small numbers, as addresses |
//!
//! Sums do not use `MPI_Allreduce`, whose order of additions is the library's: each rank receives
//! its share of all ranks (`MPI_Ialltoallv`), adds it in the fixed tree, and sends the sums to all
//! (`MPI_Iallgatherv`). No call blocks: all are polled, so that every wait has a deadline.

mod search;
mod library;
mod world;
mod headers;
mod wait;
mod group;

pub(crate) use search::{Family, Launcher};
pub(crate) use wait::abort;
pub(crate) use world::{StartError, check, leave, start};

pub(super) use group::Mpi;
