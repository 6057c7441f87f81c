//! Ranks that an MPI launcher started, through that launcher's own library, opened at run time: no
//! build needs MPI, and one program works with all of them.
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

mod library;
mod world;
mod end;
mod links;

pub use end::abort;
pub use world::{Family, Launcher, StartError, check, leave, start};

pub(super) use links::MpiLinks;
