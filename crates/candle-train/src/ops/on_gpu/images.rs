//! Orders of axes, parts, padding, and pooling.

use candle_core::{CudaStorage, Result, Shape, Tensor, bail};

use crate::ops::conv::Window;
use crate::ops::cuda::{self, Gpu};
use crate::ops::layout::Transpose;
use crate::ops::on_gpu::storage_of;
use crate::ops::operation::{Gradients, OnGpu};
use crate::ops::padding::Padding;
use crate::ops::part::Part;
use crate::ops::pool::{AveragePool, GlobalAveragePool, MaxPool, Windows};

impl OnGpu for Transpose {
    fn forward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        if self.inner > 1 {
            let (y, _) = storage_of(&self.composed(x, [self.rows, self.cols])?)?;
            return Ok((y, self.shape.clone()));
        }
        let n = x.elem_count() / (self.rows * self.cols).max(1);
        let y = cuda::transpose(gpu, cuda::of_tensor(x)?, n, (self.rows, self.cols))?;
        Ok((y, self.shape.clone()))
    }

    fn backward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        if self.inner > 1 {
            return Ok([Some(self.composed(&dy, [self.cols, self.rows])?.reshape(x.shape())?)]);
        }
        let n = x.elem_count() / (self.rows * self.cols).max(1);
        let dx = cuda::transpose(gpu, cuda::of_tensor(&dy)?, n, (self.cols, self.rows))?;
        Ok([Some(cuda::wrap(dx, x.shape()))])
    }
}

impl OnGpu for Padding {
    fn forward_on(&self, _: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        storage_of(&self.composed(x, self.value())?)
    }

    fn backward_on(&self, _: &Gpu, _: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        Ok([Some(self.composed(&dy, 0.0)?)])
    }
}

impl OnGpu for Part {
    fn forward_on(&self, _: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        storage_of(&self.composed(x)?)
    }

    fn backward_on(&self, _: &Gpu, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        Ok([Some(self.composed_gradient(x, &dy)?)])
    }
}

impl Windows {
    /// The kernels know squares alone.
    fn on_gpu(&self) -> Result<cuda::Pool> {
        let Some((kernel, Window { stride, padding })) = self.square() else {
            bail!("pooling over {:?} pixels has no kernel for GPUs", self.kernel)
        };
        let Self { n, h, w, c, oh, ow, .. } = *self;
        Ok(cuda::Pool { n, h, w, c, oh, ow, kernel, stride, padding })
    }
}

impl OnGpu for MaxPool {
    fn has_kernels(&self) -> bool {
        self.windows.square().is_some()
    }

    fn takes_half(&self) -> bool {
        self.has_kernels()
    }

    fn forward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        let (y, chosen) = self.windows.on_gpu()?.maxima(gpu, cuda::of_tensor(x)?)?;
        let shape = self.windows.output_shape();
        self.chosen.keep_on_gpu(cuda::wrap(chosen, &shape));
        Ok((y, shape))
    }

    fn backward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let Some(chosen) = self.chosen.on_gpu::<Tensor>() else { bail!("backward before forward") };
        let dy = cuda::of_tensor(&dy)?;
        let chosen = cuda::of_tensor(chosen)?;
        let dx = self.windows.on_gpu()?.gradient(gpu, dy, Some(chosen))?;
        Ok([Some(cuda::wrap(dx, x.shape()))])
    }
}

impl OnGpu for AveragePool {
    fn has_kernels(&self) -> bool {
        self.windows.square().is_some()
    }

    fn takes_half(&self) -> bool {
        self.has_kernels()
    }

    fn forward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        let y = self.windows.on_gpu()?.means(gpu, cuda::of_tensor(x)?)?;
        Ok((y, self.windows.output_shape()))
    }

    fn backward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let dx = self.windows.on_gpu()?.gradient(gpu, cuda::of_tensor(&dy)?, None)?;
        Ok([Some(cuda::wrap(dx, x.shape()))])
    }
}

impl OnGpu for GlobalAveragePool {
    fn takes_half(&self) -> bool {
        true
    }

    fn forward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        let x = cuda::of_tensor(x)?;
        let y = cuda::global_average(gpu, x, self.n, (self.pixels, self.c))?;
        Ok((y, self.output_shape()))
    }

    fn backward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let dy = cuda::of_tensor(&dy)?;
        let sizes = (self.pixels, self.c);
        let dx = cuda::global_average_gradient(gpu, dy, x.dtype(), self.n, sizes)?;
        Ok([Some(cuda::wrap(dx, x.shape()))])
    }
}
