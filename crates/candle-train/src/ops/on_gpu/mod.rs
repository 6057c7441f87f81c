//! The halves of operations that run on GPUs: each [`super::operation::OnGpu`] of an operation of
//! one file. Those of a folder have theirs there.

use candle_core::{CudaStorage, Result, Shape, Storage, Tensor, bail};

use super::operation::copy_of;

mod by_cpu;
mod images;
mod losses;
mod pointwise;
mod products;
mod rows;
mod series;

pub(super) use by_cpu::{backward_by_cpu, forward_by_cpu};

/// The memory of a result of Candle's operations, and its shape.
fn made(y: &Tensor) -> Result<(CudaStorage, Shape)> {
    match copy_of(&y.contiguous()?)? {
        (Storage::Cuda(storage), shape) => Ok((storage, shape)),
        _ => bail!("a result on the CPU"),
    }
}
