//! Convolutions on a GPU, by cuDNN; alone, transposed, or with batch norm, residual and rectifier as
//! one node of the graph.
//!
//! In such a node what lies between convolution and norm has the precision's type, and so has the
//! result; x and residual may be f32 or of that type, each as it comes, and get gradients of their own.

use candle_core::{CudaStorage, DType, Result, Shape, Tensor, bail};

use super::transposed::Transposed;
use super::{Conv, ConvGradients, ConvNorm};
use crate::Precision;
use crate::ops::batch_norm::{BatchStatistics, DeviceNorm};
use crate::ops::chain;
use crate::ops::cuda::{self, Address, Gpu};
use crate::ops::operation::{Gradients, OnGpu, Operation, TwoOrThree};
use crate::ops::weight::Weight;
use crate::ops::widen;

impl Conv {
    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> cuda::Conv<'a> {
        let Self { geometry, precision, convolutions, .. } = self;
        cuda::Conv { gpu, geometry, precision: *precision, convolutions: *convolutions }
    }

    /// Gradients from that of the sum, f32 or in the precision's type; that of x is in x's.
    fn gradients_on_gpu(
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

/// [`super::conv_batch_norm`] on a GPU, after its checks; x is contiguous.
pub(super) fn conv_batch_norm(
    x: &Tensor,
    residual: Option<&Tensor>,
    layer: &ConvNorm<'_>,
    conv: Conv,
) -> Result<(Tensor, BatchStatistics)> {
    let x = &to_accepted_type(x, conv.precision)?;
    let gpu = Gpu::of_tensor(x)?;
    let weight = layer.weight.tensor();
    let sizes = (conv.geometry.pixels(), conv.geometry.co);
    let between = conv.on_gpu(&gpu).forward(cuda::of_tensor(x)?, cuda::of_tensor(weight)?)?;
    let between = cuda::wrap(between, conv.shape.clone());
    let at = cuda::of_tensor(&between)?;
    let (norm, statistics) =
        DeviceNorm::of_batch(&gpu, at, sizes, layer.activation, layer.eps, layer.group)?;
    let [gamma, beta] = [layer.affine[0].held()?, layer.affine[1].held()?];
    let op = DeviceNode { conv, between, norm, gamma, beta };
    Ok((chain::apply(([x, weight], residual), op)?, statistics))
}

/// x in a type that a convolution of this precision reads.
fn to_accepted_type(x: &Tensor, precision: Precision) -> Result<Tensor> {
    match precision {
        Precision::Fp32 => widen(x),
        Precision::Bf16 | Precision::Fp16 => Ok(x.clone()),
    }
}

struct DeviceNode {
    conv: Conv,
    /// Result of the convolution.
    between: Tensor,
    norm: DeviceNorm,
    gamma: Weight,
    beta: Weight,
}

impl DeviceNode {
    fn affine(&self) -> [&Tensor; 2] {
        [self.gamma.tensor(), self.beta.tensor()]
    }
}

impl Operation for DeviceNode {
    type Operands<T> = TwoOrThree<T>;

    const NAME: &'static str = "conv2d-batch-norm";

    fn backward(&self, _: TwoOrThree<&Tensor>, _: &Tensor, _: Tensor) -> Gradients<Self> {
        bail!("a convolution that was made for the GPU")
    }
}

impl OnGpu for DeviceNode {
    fn takes_half(&self) -> bool {
        self.conv.precision != Precision::Fp32
    }

    fn forward_on(
        &self,
        gpu: &Gpu,
        (_, residual): TwoOrThree<&Tensor>,
    ) -> Result<(CudaStorage, Shape)> {
        let between = cuda::of_tensor(&self.between)?;
        let y = self.norm.apply(gpu, between, self.affine(), residual)?;
        Ok((y, Shape::from(&*self.conv.shape)))
    }

    /// Over `dy` the gradient of the residual.
    fn backward_on(
        &self,
        gpu: &Gpu,
        ([x, weight], residual): TwoOrThree<&Tensor>,
        y: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let between = cuda::of_tensor(&self.between)?;
        let y = residual.map(|_| y);
        let gradients = self.norm.backward(gpu, between, self.affine(), y, &dy)?;
        self.beta.destination().send_tensor(gradients.beta, self.beta.tensor())?;
        self.gamma.destination().send_tensor(gradients.gamma, self.gamma.tensor())?;
        let sums = cuda::wrap(gradients.x, dy.shape());
        let gradients = self.conv.gradients_on_gpu(gpu, x, weight, cuda::of_tensor(&sums)?)?;
        let of_residual = residual.map(|residual| cuda::cast_tensor(gpu, &dy, residual.dtype()));
        Ok(([gradients.dx, gradients.dw], of_residual.transpose()?.map(Some)))
    }
}
