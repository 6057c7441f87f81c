//! A convolution on a GPU, by cuDNN.

use candle_core::{CudaStorage, Layout, Result, Shape, Tensor};

use super::{Conv, Gradients};
use crate::ops::cuda::{self, Address, Gpu};

impl Conv {
    pub(super) fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> cuda::Conv<'a> {
        let Self { geometry, precision, convolutions, .. } = self;
        cuda::Conv { gpu, geometry, precision: *precision, convolutions: *convolutions }
    }

    pub(super) fn forward_on_gpu(
        &self,
        x: (&CudaStorage, &Layout),
        weight: (&CudaStorage, &Layout),
        bias: Option<(&CudaStorage, &Layout)>,
    ) -> Result<(CudaStorage, Shape)> {
        let gpu = Gpu::of(x.0);
        let (x, weight) = (cuda::of_storage(x.0, x.1)?, cuda::of_storage(weight.0, weight.1)?);
        let bias = bias.map(|(bias, layout)| cuda::of_storage(bias, layout)).transpose()?;
        let z = self.on_gpu(&gpu).forward(x, weight)?;
        let sizes = (self.geometry.co, self.geometry.pixels() * self.geometry.co);
        let (y, _) = cuda::finish(&gpu, &z, bias, cuda::Kind::Identity, sizes, false)?;
        Ok((y, Shape::from(self.shape.clone())))
    }

    pub(super) fn backward_on_gpu(
        &self,
        x: &Tensor,
        weight: &Tensor,
        dy: &Tensor,
    ) -> Result<Gradients> {
        let dy = dy.contiguous()?;
        self.pull_on_gpu(&Gpu::of_tensor(&dy)?, x, weight, cuda::of_tensor(&dy)?)
    }

    /// Gradients from that of the sum, f32 or in the precision's type.
    pub(super) fn pull_on_gpu(
        &self,
        gpu: &Gpu,
        x: &Tensor,
        weight: &Tensor,
        dy: Address,
    ) -> Result<Gradients> {
        let conv = self.on_gpu(gpu);
        let dw = if weight.track_op() {
            let gradient = conv.backward_filter(cuda::of_tensor(x)?, dy)?;
            self.dw.send_tensor(cuda::wrap(gradient, weight.shape()), weight)?
        } else {
            None
        };
        let dx = if x.track_op() {
            let gradient = conv.backward_data(dy, cuda::of_tensor(weight)?)?;
            Some(cuda::wrap(gradient, x.shape()))
        } else {
            None
        };
        Ok(Gradients { dx, dw })
    }

    pub(super) fn bias_gradient_on_gpu(&self, dy: &Tensor) -> Result<Tensor> {
        let (gpu, dy) = (Gpu::of_tensor(dy)?, dy.contiguous()?);
        let gradient = self.on_gpu(&gpu).bias_gradient(cuda::of_tensor(&dy)?)?;
        Ok(cuda::wrap(gradient, self.geometry.co))
    }
}
