//! Between Candle's storage and plain slices.

use candle_core::{CpuStorage, Device, Layout, Result, Shape, Storage, Tensor, bail};

/// The values of a contiguous f32 storage.
pub(super) fn slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<f32>()?[start..end]),
        None => bail!("a contiguous tensor is needed, got {layout:?}"),
    }
}

/// Calls `f` with the values of f32 tensors of the CPU; copies those that are not contiguous.
pub(super) fn read<R, const N: usize>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[f32]; N]) -> Result<R>,
) -> Result<R> {
    let tensors = tensors.iter().map(|tensor| tensor.contiguous()).collect::<Result<Vec<_>>>()?;
    let guards: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
    let mut slices = [&[] as &[f32]; N];
    for (values, (storage, layout)) in slices.iter_mut().zip(&guards) {
        match &**storage {
            Storage::Cpu(storage) => *values = slice(storage, layout)?,
            _ => bail!("a tensor of the cpu is needed"),
        }
    }
    f(slices)
}

/// A tensor of the CPU with these values.
pub(super) fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(values, shape.into(), &Device::Cpu)
}

/// What a custom operation returns from its forward.
pub(super) fn output(values: Vec<f32>, shape: impl Into<Shape>) -> (CpuStorage, Shape) {
    (CpuStorage::F32(values), shape.into())
}
