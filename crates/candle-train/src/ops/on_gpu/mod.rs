//! [`super::operation::OnGpu`] of the operations that are a file each; those of a folder have an
//! `on_gpu.rs` of their own.

use candle_core::{CudaStorage, Result, Shape, Storage, Tensor, bail};

use super::operation::copy_of;

mod images;
mod losses;
mod pointwise;
mod products;
mod rows;
mod series;

/// The memory of a result of Candle's operations, and its shape.
fn storage_of(y: &Tensor) -> Result<(CudaStorage, Shape)> {
    match copy_of(&y.contiguous()?)? {
        (Storage::Cuda(storage), shape) => Ok((storage, shape)),
        _ => bail!("a result on the CPU"),
    }
}
