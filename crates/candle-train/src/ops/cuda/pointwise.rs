//! Element by element: casts, activations, what follows a product, dropout, embeddings.

use candle_core::{CudaStorage, DType, Result, Tensor, bail};

use super::gpu::{Gpu, Grid, wrap};
use super::kernel_args::{Address, args, of_tensor, suffix, whole};
use crate::rng::Key;

/// `Activation` of elementwise.cu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(in crate::ops) enum Kind {
    Identity,
    Relu,
    Gelu,
    GeluTanh,
    Silu,
    Mish,
    Sigmoid,
    Tanh,
    LeakyRelu,
    Relu6,
    Hardsigmoid,
    Hardswish,
}

/// Values of a type: what was given, or a copy that was made for it.
pub(in crate::ops) enum Cast {
    Given(Address),
    Made(CudaStorage),
}

impl Cast {
    pub(in crate::ops) fn address(&self) -> Result<Address> {
        match self {
            Self::Given(address) => Ok(*address),
            Self::Made(storage) => whole(storage),
        }
    }
}

/// `n` values as `dtype`: themselves if that is what they are. One of the types is f32.
pub(in crate::ops) fn cast(gpu: &Gpu, values: Address, dtype: DType, n: usize) -> Result<Cast> {
    let kernel = match (values.dtype, dtype) {
        (from, to) if from == to => return Ok(Cast::Given(values)),
        (DType::F32, half) => format!("narrow_{}", suffix(half)?),
        (half, DType::F32) => format!("widen_{}", suffix(half)?),
        (from, to) => bail!("values of {from:?} where {to:?} is computed with"),
    };
    let out = gpu.storage(dtype, n)?;
    gpu.launch(&kernel, Grid::over(n.div_ceil(4)), args![values, whole(&out)?, n])?;
    Ok(Cast::Made(out))
}

/// `n` values as f32.
pub(super) fn widened(gpu: &Gpu, values: CudaStorage, n: usize) -> Result<CudaStorage> {
    match cast(gpu, whole(&values)?, DType::F32, n)? {
        Cast::Given(_) => Ok(values),
        Cast::Made(storage) => Ok(storage),
    }
}

/// A contiguous tensor as `dtype`, outside of any graph: itself, if it has that type.
pub(in crate::ops) fn cast_tensor(gpu: &Gpu, x: &Tensor, dtype: DType) -> Result<Tensor> {
    match cast(gpu, of_tensor(x)?, dtype, x.elem_count())? {
        Cast::Given(_) => Ok(x.clone()),
        Cast::Made(storage) => Ok(wrap(storage, x.shape())),
    }
}

/// A tensor in half precision as f32.
pub(in crate::ops) fn widened_tensor(gpu: &Gpu, x: &Tensor) -> Result<CudaStorage> {
    match cast(gpu, of_tensor(x)?, DType::F32, x.elem_count())? {
        Cast::Made(storage) => Ok(storage),
        Cast::Given(_) => bail!("values that are f32 already"),
    }
}

/// Adds `values` to `sum`: contiguous tensors of one type and shape.
pub(in crate::ops) fn add_to(sum: &Tensor, values: &Tensor) -> Result<()> {
    let gpu = Gpu::of_tensor(sum)?;
    let n = sum.elem_count();
    let sum = of_tensor(sum)?;
    let values = of_tensor(values)?;
    let kernel = format!("add_to_{}", suffix(sum.dtype)?);
    gpu.launch(&kernel, Grid::over(n.div_ceil(4)), args![sum, values, n])
}

/// A function of `n` values, in their type, and of one number.
pub(in crate::ops) fn activation(
    gpu: &Gpu,
    x: Address,
    kind: Kind,
    parameter: f32,
    n: usize,
) -> Result<CudaStorage> {
    let y = gpu.storage(x.dtype, n)?;
    let kernel = activation_kernel("activation", x.dtype)?;
    let arguments = args![x, whole(&y)?, kind as i32, parameter, n];
    gpu.launch(&kernel, Grid::over(n.div_ceil(4)), arguments)?;
    Ok(y)
}

/// The instance of a kernel for a type.
fn activation_kernel(kernel: &str, dtype: DType) -> Result<String> {
    match dtype {
        DType::F32 => Ok(kernel.to_owned()),
        half => Ok(format!("{kernel}_{}", suffix(half)?)),
    }
}

/// Over dy, in x's type, the gradient of x.
pub(in crate::ops) fn activation_gradient(
    gpu: &Gpu,
    [x, dy]: [Address; 2],
    kind: Kind,
    parameter: f32,
    n: usize,
) -> Result<()> {
    let kernel = activation_kernel("activation_gradient", x.dtype)?;
    let arguments = args![x, dy, kind as i32, parameter, n];
    gpu.launch(&kernel, Grid::over(n.div_ceil(4)), arguments)
}

/// Options of [`finish`].
#[derive(Clone, Copy)]
pub(in crate::ops) struct Finish {
    pub(in crate::ops) kind: Kind,
    /// Columns of the product.
    pub(in crate::ops) width: usize,
    /// Elements of it from one row to the next.
    pub(in crate::ops) stride: usize,
    /// Elements of it.
    pub(in crate::ops) n: usize,
    /// True if the input of the activation is kept.
    pub(in crate::ops) keeps: bool,
    /// Type of the result: f32, or the product's.
    pub(in crate::ops) dtype: DType,
}

/// activation(z + bias) (n / width, width) of the product z; and what entered the activation, in
/// z's type.
pub(in crate::ops) fn finish(
    gpu: &Gpu,
    z: &CudaStorage,
    bias: Option<Address>,
    options: Finish,
) -> Result<(CudaStorage, Option<CudaStorage>)> {
    let Finish { kind, width, stride, n, keeps, dtype } = options;
    let z = whole(z)?;
    let y = gpu.storage(dtype, n)?;
    let before = keeps.then(|| gpu.storage(z.dtype, n)).transpose()?;
    let place = before.as_ref().map(whole).transpose()?;
    let kernel = format!("finish_{}_as_{}", suffix(z.dtype)?, suffix(dtype)?);
    let out = whole(&y)?;
    let arguments = args![z, bias, out, place, kind as i32, width, stride, n];
    gpu.launch(&kernel, Grid::over(n.div_ceil(4)), arguments)?;
    Ok((y, before))
}

/// Options of [`unfinish`].
#[derive(Clone, Copy)]
pub(super) struct Unfinish {
    pub(super) kind: Kind,
    /// Type of the gradient.
    pub(super) dtype: DType,
    /// Columns of the input.
    pub(super) width: usize,
    /// Columns of the output, the last of which are zeros.
    pub(super) stride: usize,
    /// Elements of the output.
    pub(super) n: usize,
}

/// The gradient (n / stride, stride) of what entered the activation: `before` is that, and y, for a
/// rectifier, the result.
pub(super) fn unfinish(
    gpu: &Gpu,
    [dy, y]: [Address; 2],
    before: Option<Address>,
    options: Unfinish,
) -> Result<CudaStorage> {
    let Unfinish { kind, dtype, width, stride, n } = options;
    let dz = gpu.storage(dtype, n)?;
    let kernel = format!("unfinish_{}_as_{}", suffix(dtype)?, suffix(dy.dtype)?);
    let out = whole(&dz)?;
    let arguments = args![dy, y, before, out, kind as i32, width, stride, n];
    gpu.launch(&kernel, Grid::over(n.div_ceil(4)), arguments)?;
    Ok(dz)
}

/// Numbers of a mask: the stream, the least number that is kept, and the factor of the kept values.
/// The mask is the CPU's, bit for bit.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Mask {
    pub(super) key: u64,
    pub(super) threshold: u64,
    pub(super) scale: f32,
}

impl Mask {
    /// The mask of probability `p`.
    pub(in crate::ops) fn new(p: f64, key: Key) -> Self {
        let scale = if p < 1.0 { (1.0 / (1.0 - p)) as f32 } else { 0.0 };
        Self { key: key.state(), threshold: (p * (1u64 << 53) as f64).ceil() as u64, scale }
    }
}

/// `n` values after dropout.
pub(in crate::ops) fn dropped(gpu: &Gpu, x: Address, mask: Mask, n: usize) -> Result<CudaStorage> {
    let y = gpu.storage(DType::F32, n)?;
    drop_into(gpu, x, whole(&y)?, mask, n)?;
    Ok(y)
}

/// Applies dropout to `n` values in place.
pub(in crate::ops) fn drop_in_place(gpu: &Gpu, x: Address, mask: Mask, n: usize) -> Result<()> {
    drop_into(gpu, x, x, mask, n)
}

fn drop_into(gpu: &Gpu, x: Address, y: Address, mask: Mask, n: usize) -> Result<()> {
    let Mask { key, threshold, scale } = mask;
    gpu.launch("dropout", Grid::over(n.div_ceil(4)), args![x, y, key, threshold, scale, n])
}

/// Rows of `table` (rows, c), one for each index.
pub(in crate::ops) fn embedding(
    gpu: &Gpu,
    table: Address,
    indices: &[u32],
    c: usize,
) -> Result<CudaStorage> {
    let n = indices.len() * c;
    let y = gpu.storage(DType::F32, n)?;
    let indices = gpu.upload(bytemuck::cast_slice(indices))?;
    gpu.launch(
        "embedding",
        Grid::over(n.div_ceil(4)),
        &[table.into(), indices.at(), whole(&y)?.into(), c.into(), n.into()],
    )?;
    Ok(y)
}

/// The gradient of the table: `positions` of each row are `starts[row]..starts[row + 1]`, and dy
/// (indices, c).
pub(in crate::ops) fn embedding_gradient(
    gpu: &Gpu,
    dy: Address,
    starts: &[u32],
    positions: &[u32],
    c: usize,
) -> Result<CudaStorage> {
    let rows = starts.len() - 1;
    let gradient = gpu.storage(DType::F32, rows * c)?;
    let starts = gpu.upload(bytemuck::cast_slice(starts))?;
    let positions = gpu.upload(bytemuck::cast_slice(positions))?;
    let arguments = [dy.into(), starts.at(), positions.at(), whole(&gradient)?.into(), c.into()];
    gpu.launch("embedding_gradient", Grid::rows(rows), &arguments)?;
    Ok(gradient)
}
