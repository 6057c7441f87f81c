//! Element by element: activations, sums, dropout; and rows of a table.

use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, DType, Result, Shape, Storage, Tensor, bail};

use crate::ops::activation::{Elementwise, Function};
use crate::ops::add::Add;
use crate::ops::cuda::{self, Gpu, Kind, Mask};
use crate::ops::dropout::Dropout;
use crate::ops::embedding::Embedding;
use crate::ops::half_precision::Widen;
use crate::ops::operation::{Gradients, OnGpu};

/// The kernels' number of a function.
fn kind_of(name: &str) -> Result<Kind> {
    Ok(match name {
        "relu" => Kind::Relu,
        "leaky-relu" => Kind::LeakyRelu,
        "relu6" => Kind::Relu6,
        "hardsigmoid" => Kind::Hardsigmoid,
        "hardswish" => Kind::Hardswish,
        "gelu" => Kind::Gelu,
        "gelu-tanh" => Kind::GeluTanh,
        "silu" => Kind::Silu,
        "mish" => Kind::Mish,
        "sigmoid" => Kind::Sigmoid,
        "tanh" => Kind::Tanh,
        _ => bail!("{name} has no kernel for GPUs"),
    })
}

impl<F: Function> OnGpu for Elementwise<F> {
    fn takes_half(&self) -> bool {
        true
    }

    fn forward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        let at = cuda::of_tensor(x)?;
        let kind = kind_of(F::NAME)?;
        let parameter = self.0.parameter();
        Ok((cuda::activation(gpu, at, kind, parameter, x.elem_count())?, x.shape().clone()))
    }

    fn backward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let x = cuda::of_tensor(x)?;
        let at = cuda::of_tensor(&dy)?;
        let kind = kind_of(F::NAME)?;
        let parameter = self.0.parameter();
        cuda::activation_gradient(gpu, [x, at], kind, parameter, dy.elem_count())?;
        Ok([Some(dy)])
    }
}

/// The sum has the type of both, or f32.
impl OnGpu for Add {
    fn takes_half(&self) -> bool {
        true
    }

    fn forward_on(&self, gpu: &Gpu, [a, b]: [&Tensor; 2]) -> Result<(CudaStorage, Shape)> {
        let dtype = if a.dtype() == b.dtype() { a.dtype() } else { DType::F32 };
        let [a, b] = [a, b].map(|x| cuda::cast_tensor(gpu, x, dtype));
        let a = a?;
        let b = b?;
        let ((a_storage, a_layout), (b_storage, b_layout)) =
            (a.storage_and_layout(), b.storage_and_layout());
        let (Storage::Cuda(first), Storage::Cuda(second)) = (&*a_storage, &*b_storage) else {
            bail!("a sum of tensors of different devices")
        };
        let sum = first.binary_impl::<candle_core::op::Add>(second, a_layout, b_layout)?;
        Ok((sum, a.shape().clone()))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        operands: [&Tensor; 2],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let [a, b] = operands.map(|x| cuda::cast_tensor(gpu, &dy, x.dtype()));
        Ok([Some(a?), Some(b?)])
    }
}

impl OnGpu for Widen {
    fn takes_half(&self) -> bool {
        true
    }

    fn forward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        Ok((cuda::widened_tensor(gpu, x)?, x.shape().clone()))
    }

    fn backward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        Ok([Some(cuda::cast_tensor(gpu, &dy, x.dtype())?)])
    }
}

impl OnGpu for Dropout {
    fn forward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        let mask = Mask::new(self.p, self.key);
        let y = cuda::dropped(gpu, cuda::of_tensor(x)?, mask, x.elem_count())?;
        Ok((y, x.shape().clone()))
    }

    fn backward_on(&self, gpu: &Gpu, _: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let mask = Mask::new(self.p, self.key);
        cuda::drop_in_place(gpu, cuda::of_tensor(&dy)?, mask, dy.elem_count())?;
        Ok([Some(dy)])
    }
}

impl OnGpu for Embedding {
    fn forward_on(&self, gpu: &Gpu, [table]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        let table = cuda::of_tensor(table)?;
        let y = cuda::embedding(gpu, table, &numbers(&self.indices), self.c)?;
        Ok((y, Shape::from(self.shape.clone())))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        [table]: [&Tensor; 1],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let (rows, _) = table.dims2()?;
        let (starts, positions) = self.uses(rows);
        let starts = numbers(&starts);
        let positions = numbers(&positions);
        let dy = cuda::of_tensor(&dy)?;
        let gradient = cuda::embedding_gradient(gpu, dy, &starts, &positions, self.c)?;
        let gradient = cuda::wrap(gradient, table.shape());
        Ok([self.destination.send_tensor(gradient, table)?])
    }
}

/// As kernels read them.
fn numbers(values: &[usize]) -> Vec<u32> {
    values.iter().map(|&value| value as u32).collect()
}
