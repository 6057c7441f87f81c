//! The halves of operations that run on GPUs: each [`super::operation::OnGpu`] of an operation of
//! one file. Those of a folder have theirs there.

mod by_cpu;
mod images;
mod losses;
mod pointwise;
mod products;
mod rows;
mod series;

pub(super) use by_cpu::{backward_by_cpu, forward_by_cpu};
