//! Gradients in flat buckets.

use candle_core::{DType, Result, Tensor, bail};

use super::address::of_tensor;
use super::gpu::{Arg, Gpu, Grid, args, suffix};

/// Elements `start..` of `bucket`, both f32 on the GPU, plus `values`, or replaced by them.
pub fn put(bucket: &Tensor, start: usize, values: &Tensor, adds: bool) -> Result<()> {
    let n = values.elem_count();
    let values = values.contiguous()?;
    let from = of_tensor(&values)?.into();
    let place = place(bucket, start, n)?;
    let (kernel, places) =
        if adds { ("add", [place, from]) } else { ("narrow_f32", [from, place]) };
    let gpu = Gpu::of_tensor(bucket)?;
    gpu.launch(kernel, Grid::over(n.div_ceil(4)), &[places[0], places[1], n.into()])
}

/// Sets `n` elements of `bucket` from `start` on to zero.
pub fn clear(bucket: &Tensor, start: usize, n: usize) -> Result<()> {
    let place = place(bucket, start, n)?;
    Gpu::of_tensor(bucket)?.launch("clear", Grid::over(n.div_ceil(4)), &[place, n.into()])
}

/// Gives each of two tensors, f32 on the GPU and equally long, the values of the other; both stay
/// where they are.
pub fn exchange(one: &Tensor, other: &Tensor) -> Result<()> {
    let n = one.elem_count();
    let places = [place(one, 0, n)?, place(other, 0, n)?];
    Gpu::of_tensor(one)?.launch("exchange", Grid::over(n), &[places[0], places[1], n.into()])
}

/// The values of `bucket`, f32 on the GPU, times `factor`, as `dtype`.
pub fn compress(bucket: &Tensor, dtype: DType, factor: f32) -> Result<Tensor> {
    let gpu = Gpu::of_tensor(bucket)?;
    let n = bucket.elem_count();
    let half = gpu.tensor(dtype, n)?;
    let kernel = format!("compress_{}", suffix(dtype)?);
    let arguments = args![of_tensor(bucket)?, of_tensor(&half)?, factor, n];
    gpu.launch(&kernel, Grid::over(n.div_ceil(4)), arguments)?;
    Ok(half)
}

/// The way back: `bucket` becomes `half` times `factor`.
pub fn expand(half: &Tensor, bucket: &Tensor, factor: f32) -> Result<()> {
    let gpu = Gpu::of_tensor(bucket)?;
    let n = bucket.elem_count();
    let kernel = format!("expand_{}", suffix(half.dtype())?);
    let arguments = args![of_tensor(half)?, of_tensor(bucket)?, factor, n];
    gpu.launch(&kernel, Grid::over(n.div_ceil(4)), arguments)
}

/// Where the values of a tensor lie, for libraries that know nothing of tensors.
pub fn pointer(tensor: &Tensor) -> Result<u64> {
    Ok(of_tensor(tensor)?.at)
}

fn place(bucket: &Tensor, start: usize, n: usize) -> Result<Arg> {
    let room = bucket.elem_count();
    if start + n > room {
        bail!("{n} gradients at {start} of a bucket of {room}");
    }
    Ok(Arg::Address(of_tensor(bucket)?.at + 4 * start as u64))
}
