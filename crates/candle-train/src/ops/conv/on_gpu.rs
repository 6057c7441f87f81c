//! Convolutions on a GPU, by cuDNN.

use candle_core::{CudaStorage, DType, Result, Shape, Tensor};

use super::transposed::Transposed;
use super::{Conv, ConvGradients};
use crate::Precision;
use crate::ops::cuda::{self, Address, Gpu};
use crate::ops::operation::{Gradients, OnGpu, TwoOrThree};

impl Conv {
    pub(super) fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> cuda::Conv<'a> {
        let Self { geometry, precision, convolutions, .. } = self;
        cuda::Conv { gpu, geometry, precision: *precision, convolutions: *convolutions }
    }

    /// Gradients from that of the sum, f32 or in the precision's type; that of x is in x's.
    pub(super) fn gradients_on_gpu(
        &self,
        gpu: &Gpu,
        x: &Tensor,
        weight: &Tensor,
        dy: Address,
    ) -> Result<ConvGradients> {
        let conv = self.on_gpu(gpu);
        let dw = if weight.track_op() {
            let gradient = conv.backward_filter(cuda::of_tensor(x)?, dy)?;
            self.dw.send_tensor(cuda::wrap(gradient, weight.shape()), weight)?
        } else {
            None
        };
        let dx = if x.track_op() {
            let gradient = conv.backward_data(dy, cuda::of_tensor(weight)?)?;
            Some(cuda::cast_tensor(gpu, &cuda::wrap(gradient, x.shape()), x.dtype())?)
        } else {
            None
        };
        Ok(ConvGradients { dx, dw })
    }
}

impl Transposed {
    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> cuda::Conv<'a> {
        let Self { geometry, precision, convolutions, .. } = self;
        cuda::Conv { gpu, geometry, precision: *precision, convolutions: *convolutions }
    }
}

impl OnGpu for Conv {
    fn takes_half(&self) -> bool {
        self.precision != Precision::Fp32
    }

    fn forward_on(
        &self,
        gpu: &Gpu,
        ([x, weight], bias): TwoOrThree<&Tensor>,
    ) -> Result<(CudaStorage, Shape)> {
        let bias = bias.map(cuda::of_tensor).transpose()?;
        let z = self.on_gpu(gpu).forward(cuda::of_tensor(x)?, cuda::of_tensor(weight)?)?;
        let width = self.geometry.co;
        let n = self.geometry.pixels() * width;
        let kind = cuda::Kind::Identity;
        let stride = width;
        let options = cuda::Finish { kind, width, stride, n, keeps: false, dtype: DType::F32 };
        let (y, _) = cuda::finish(gpu, &z, bias, options)?;
        Ok((y, Shape::from(&*self.shape)))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        ([x, weight], bias): TwoOrThree<&Tensor>,
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let at = cuda::of_tensor(&dy)?;
        // The bias's leaves first: it was registered last.
        let db = match (&self.db, bias) {
            (Some(destination), Some(bias)) => {
                let gradient = self.on_gpu(gpu).bias_gradient(at)?;
                destination.send_tensor(cuda::wrap(gradient, self.geometry.co), bias)?
            }
            _ => None,
        };
        let gradients = self.gradients_on_gpu(gpu, x, weight, at)?;
        Ok(([gradients.dx, gradients.dw], Some(db)))
    }
}

impl OnGpu for Transposed {
    fn forward_on(
        &self,
        gpu: &Gpu,
        [x, weight, bias]: [&Tensor; 3],
    ) -> Result<(CudaStorage, Shape)> {
        let [x, weight, bias] = [x, weight, bias].map(cuda::of_tensor);
        let y = self.on_gpu(gpu).transposed(x?, weight?, bias?)?;
        Ok((y, self.output_shape()))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        [x, weight, bias]: [&Tensor; 3],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let [x_at, weight_at, dy_at] = [x, weight, &dy].map(cuda::of_tensor);
        let [dx, dw, db] = self.on_gpu(gpu).transposed_gradients(x_at?, weight_at?, dy_at?)?;
        let db = self.db.send_tensor(cuda::wrap(db, bias.shape()), bias)?;
        let dw = self.dw.send_tensor(cuda::wrap(dw, weight.shape()), weight)?;
        Ok([Some(cuda::wrap(dx, x.shape())), dw, db])
    }
}
