//! Between Candle's storage and plain slices.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ops::Range;

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{
    CpuStorage, DType, Device, InplaceOp1, Layout, Result, Shape, Storage, Tensor, bail,
};

use super::element::{Element, Numbers};

/// The values of a contiguous storage of this type.
pub(super) fn slice<'a, E: Element>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [E]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<E>()?[start..end]),
        None => bail!("a contiguous tensor is needed, got {layout:?}"),
    }
}

/// Calls `f` with the values of f32 tensors of the CPU; copies those that are not contiguous.
pub(super) fn read<R, const N: usize>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[f32]; N]) -> Result<R>,
) -> Result<R> {
    read_of(tensors, f)
}

/// [`read`] of tensors of this type.
pub(super) fn read_of<E: Element, R, const N: usize>(
    tensors: [&Tensor; N],
    f: impl FnOnce([&[E]; N]) -> Result<R>,
) -> Result<R> {
    let tensors = tensors.iter().map(|tensor| tensor.contiguous()).collect::<Result<Vec<_>>>()?;
    let guards: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
    let mut slices = [&[] as &[E]; N];
    for (values, (storage, layout)) in slices.iter_mut().zip(&guards) {
        match &**storage {
            Storage::Cpu(storage) => *values = slice(storage, layout)?,
            _ => bail!("a tensor of the cpu is needed"),
        }
    }
    f(slices)
}

/// Calls `f` with the values of tensors of the CPU, f32 or bf16; copies those that are not
/// contiguous.
pub(super) fn read_numbers<R, const N: usize>(
    tensors: [&Tensor; N],
    f: impl FnOnce([Numbers<'_>; N]) -> Result<R>,
) -> Result<R> {
    let tensors = tensors.iter().map(|tensor| tensor.contiguous()).collect::<Result<Vec<_>>>()?;
    let guards: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
    let mut numbers = [Numbers::F32(&[]); N];
    for (numbers, (storage, layout)) in numbers.iter_mut().zip(&guards) {
        *numbers = match &**storage {
            Storage::Cpu(storage @ CpuStorage::BF16(_)) => Numbers::Bf16(slice(storage, layout)?),
            Storage::Cpu(storage) => Numbers::F32(slice(storage, layout)?),
            _ => bail!("a tensor of the cpu is needed"),
        }
    }
    f(numbers)
}

/// True if two tensors share their memory.
pub(super) fn same_storage(a: &Tensor, b: &Tensor) -> bool {
    let a = a.storage_and_layout().0;
    let b = b.storage_and_layout().0;
    std::ptr::eq(&raw const *a, &raw const *b)
}

/// A tensor of the CPU with these values.
pub(super) fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(values, shape.into(), &Device::Cpu)
}

/// Gives the values of a contiguous gradient that came into a backward, in row-major order, to
/// `change`, which may overwrite them.
///
/// The gradient is its node's own and dropped afterwards, since Candle adds what each edge
/// contributes into a fresh tensor. No other tensor of a pass may be changed.
pub(super) fn overwrite<E: Element, R>(
    gradient: &Tensor,
    change: impl FnOnce(&mut [E]) -> R,
) -> Result<R> {
    with_vector_of(gradient, |values: &mut Vec<E>, range| change(&mut values[range]))
}

/// Gives the vector that holds a contiguous f32 tensor of the CPU, and the tensor's place in it, to
/// `change`. Everything that shares the vector sees the change.
pub fn with_vector<R>(
    tensor: &Tensor,
    change: impl FnOnce(&mut Vec<f32>, Range<usize>) -> R,
) -> Result<R> {
    with_vector_of(tensor, change)
}

/// [`with_vector`] of a tensor of this type.
pub(super) fn with_vector_of<E: Element, R>(
    tensor: &Tensor,
    change: impl FnOnce(&mut Vec<E>, Range<usize>) -> R,
) -> Result<R> {
    let change = Change {
        f: Cell::new(Some(change)),
        result: Cell::new(None),
        element: PhantomData::<fn(E)>,
    };
    tensor.inplace_op1(&change)?;
    match change.result.into_inner() {
        Some(result) => Ok(result),
        None => bail!("the values were not changed"),
    }
}

/// The values of a contiguous tensor that is not read again.
pub(super) fn take_storage(x: &Tensor) -> Result<(Storage, Shape)> {
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return Ok((Storage::Cuda(take_from_gpu(x)?), x.shape().clone()));
    }
    let storage = match x.dtype() {
        DType::BF16 => CpuStorage::BF16(with_vector_of(x, |values, _| std::mem::take(values))?),
        _ => CpuStorage::F32(with_vector_of(x, |values, _| std::mem::take(values))?),
    };
    Ok((Storage::Cpu(storage), x.shape().clone()))
}

/// Calls the closure, once, on the tensor's storage.
struct Change<F, R, E> {
    f: Cell<Option<F>>,
    result: Cell<Option<R>>,
    element: PhantomData<fn(E)>,
}

impl<E: Element, R, F: FnOnce(&mut Vec<E>, Range<usize>) -> R> InplaceOp1 for Change<F, R, E> {
    fn name(&self) -> &'static str {
        "change-values"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let Some(values) = E::vector(storage) else { bail!("values to change are {:?}", E::DTYPE) };
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("values to change are contiguous")
        };
        self.result.set(self.f.take().map(|f| f(values, start..end)));
        Ok(())
    }
}

/// The memory of a whole tensor of a GPU, which has none of its own then.
#[cfg(feature = "cuda")]
fn take_from_gpu(x: &Tensor) -> Result<CudaStorage> {
    let take = Take(Cell::new(None));
    x.inplace_op1(&take)?;
    match take.0.into_inner() {
        Some(storage) => Ok(storage),
        None => bail!("no memory of a GPU"),
    }
}

#[cfg(feature = "cuda")]
struct Take(Cell<Option<CudaStorage>>);

#[cfg(feature = "cuda")]
impl InplaceOp1 for Take {
    fn name(&self) -> &'static str {
        "take-values"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        bail!("values of the CPU")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> Result<()> {
        if layout.contiguous_offsets().is_none_or(|(start, _)| start != 0) {
            bail!("values to take are whole, got {layout:?}");
        }
        let rest = super::cuda::placeholder(storage)?;
        self.0.set(Some(std::mem::replace(storage, rest)));
        Ok(())
    }
}
