//! Convolution, batch norm, residual and rectifier as one node of the graph, on a GPU. What lies
//! between convolution and norm has the precision's type, and so has the result; x and residual may
//! be f32 or of that type, each as it comes, and get gradients of their own.

use candle_core::{CudaStorage, Result, Shape, Tensor, bail};

use super::{Conv, ConvNorm};
use crate::Precision;
use crate::ops::batch_norm::BatchStatistics;
use crate::ops::chain;
use crate::ops::cuda::{self, DeviceNorm, Gpu};
use crate::ops::operation::{Gradients, OnGpu, Operation, TwoOrThree};
use crate::ops::weight::Weight;
use crate::ops::widen::widen;

/// As [`super::conv_batch_norm`], whose checks have passed; x is contiguous.
pub(super) fn conv_batch_norm(
    x: &Tensor,
    residual: Option<&Tensor>,
    layer: &ConvNorm<'_>,
    conv: Conv,
) -> Result<(Tensor, BatchStatistics)> {
    let x = &as_taken(x, conv.precision)?;
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
fn as_taken(x: &Tensor, precision: Precision) -> Result<Tensor> {
    match precision {
        Precision::Fp32 => widen(x),
        Precision::Bf16 | Precision::Fp16 => Ok(x.clone()),
    }
}

struct DeviceNode {
    conv: Conv,
    /// What the convolution made.
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
        let found = self.norm.backward(gpu, between, self.affine(), y, &dy)?;
        self.beta.destination().send_tensor(found.beta, self.beta.tensor())?;
        self.gamma.destination().send_tensor(found.gamma, self.gamma.tensor())?;
        let sums = cuda::wrap(found.x, dy.shape());
        let gradients = self.conv.gradients_on_gpu(gpu, x, weight, cuda::of_tensor(&sums)?)?;
        let of_residual = residual.map(|residual| cuda::cast_tensor(gpu, &dy, residual.dtype()));
        Ok(([gradients.dx, gradients.dw], of_residual.transpose()?.map(Some)))
    }
}
