//! Products of channels and samples, and images of other sizes: by Candle's own kernels.

use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, Result, Shape, Storage, Tensor, bail};

use crate::ops::cuda::Gpu;
use crate::ops::drop_path::DropPath;
use crate::ops::on_gpu::storage_of;
use crate::ops::operation::{Gradients, OnGpu};
use crate::ops::product::{Multiple, Product};
use crate::ops::recurrent::Recurrent;
use crate::ops::repeat_heads::RepeatHeads;
use crate::ops::resample::Resample;
use crate::ops::shift::Shift;
use crate::ops::shortcut::PaddedShortcut;

impl Product {
    /// x as (groups, rows, c), factors as (groups, 1, c).
    fn grouped(&self, x: &Tensor, factors: &Tensor) -> Result<[Tensor; 2]> {
        let x = x.detach().reshape(((), self.rows, self.c))?;
        Ok([x, factors.detach().reshape(((), 1, self.c))?])
    }
}

impl OnGpu for Product {
    fn forward_on(&self, _: &Gpu, [x, factors]: [&Tensor; 2]) -> Result<(CudaStorage, Shape)> {
        let [grouped, factors] = self.grouped(x, factors)?;
        let every = factors.broadcast_as(grouped.shape())?;
        let ((x_storage, rows), (storage, layout)) =
            (grouped.storage_and_layout(), every.storage_and_layout());
        let (Storage::Cuda(first), Storage::Cuda(second)) = (&*x_storage, &*storage) else {
            bail!("a product of tensors of different devices")
        };
        let y = first.binary_impl::<candle_core::op::Mul>(second, rows, layout)?;
        Ok((y, x.shape().clone()))
    }

    fn backward_on(
        &self,
        _: &Gpu,
        [x, factors]: [&Tensor; 2],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let [grouped, every] = self.grouped(x, factors)?;
        let dy = dy.detach().reshape(grouped.shape())?;
        let of_factors = (&dy * grouped)?.sum(1)?.reshape(factors.shape())?;
        let of_factors = self.destination.send_tensor(of_factors, factors)?;
        Ok([Some(dy.broadcast_mul(&every)?.reshape(x.shape())?), of_factors])
    }
}

impl OnGpu for Shift {
    fn forward_on(&self, _: &Gpu, [x, shift]: [&Tensor; 2]) -> Result<(CudaStorage, Shape)> {
        let rows = x.detach().reshape(((), self.sample / self.c, self.c))?;
        let (y, _) =
            storage_of(&rows.broadcast_add(&shift.detach().reshape(((), 1, self.c))?)?)?;
        Ok((y, x.shape().clone()))
    }

    fn backward_on(
        &self,
        _: &Gpu,
        [_, shift]: [&Tensor; 2],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let sums = dy.detach().reshape(((), self.sample / self.c, self.c))?.sum(1)?;
        Ok([Some(dy), Some(sums.reshape(shift.shape())?)])
    }
}

impl DropPath {
    fn on_gpu(&self, x: &Tensor) -> Result<Tensor> {
        let n = self.factors.len();
        let factors = Tensor::from_slice(&self.factors, (n, 1), x.device())?;
        x.detach().reshape((n, ()))?.broadcast_mul(&factors)?.reshape(x.shape())
    }
}

impl OnGpu for DropPath {
    fn forward_on(&self, _: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        storage_of(&self.on_gpu(x)?)
    }

    fn backward_on(&self, _: &Gpu, _: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        Ok([Some(self.on_gpu(&dy)?)])
    }
}

impl OnGpu for Resample {
    fn forward_on(&self, _: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        storage_of(&self.composed(x, false)?)
    }

    fn backward_on(&self, _: &Gpu, _: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        Ok([Some(self.composed(&dy, true)?)])
    }
}

impl OnGpu for PaddedShortcut {
    fn forward_on(&self, _: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        storage_of(&self.composed(x)?)
    }

    fn backward_on(&self, _: &Gpu, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        Ok([Some(self.composed_gradient(x, &dy)?)])
    }
}

impl OnGpu for Multiple {
    fn forward_on(&self, _: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        storage_of(&(x.detach() * f64::from(self.factor))?)
    }

    fn backward_on(&self, _: &Gpu, _: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        Ok([Some((dy.detach() * f64::from(self.factor))?)])
    }
}

impl OnGpu for RepeatHeads {
    fn forward_on(&self, _: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        storage_of(&self.composed(x)?)
    }

    fn backward_on(&self, _: &Gpu, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        Ok([Some(self.composed_gradient(x, &dy)?)])
    }
}

/// Steps one after another are many small kernels; models of these are refused by the plan.
impl OnGpu for Recurrent {
    fn has_kernels(&self) -> bool {
        false
    }
}
