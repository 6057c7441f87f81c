//! Convolution, batch norm, residual and rectifier as one node of the graph, on a GPU. What lies between convolution and
//! norm stays in the precision's type.

use candle_core::{
    CpuStorage, CudaStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail,
};

use super::{Conv, ConvNorm, Gradients};
use crate::ops::chain;
use crate::ops::cuda::{self, Address, DeviceNorm, Gpu};
use crate::ops::norm::BatchStatistics;
use crate::ops::weight::Weight;

/// As [`super::conv_batch_norm`], whose checks have passed; x is contiguous.
pub(super) fn conv_batch_norm(
    x: &Tensor,
    residual: Option<&Tensor>,
    layer: &ConvNorm<'_>,
    conv: Conv,
) -> Result<(Tensor, BatchStatistics)> {
    let (gpu, weight) = (Gpu::of_tensor(x)?, layer.weight.tensor());
    let sizes = (conv.geometry.pixels(), conv.geometry.co);
    let between = conv.on_gpu(&gpu).forward(cuda::of_tensor(x)?, cuda::of_tensor(weight)?)?;
    let between = cuda::wrap(between, conv.shape.clone());
    let at = cuda::of_tensor(&between)?;
    let (norm, statistics) = DeviceNorm::of_batch(&gpu, at, sizes, layer.activation, layer.eps)?;
    let [gamma, beta] = [layer.affine[0].held()?, layer.affine[1].held()?];
    let op = Node { conv, between, norm, gamma, beta };
    let y = match residual {
        None => chain::apply2(x, weight, op),
        Some(residual) => chain::apply3(x, weight, &residual.contiguous()?, op),
    };
    Ok((y?, statistics))
}

struct Node {
    conv: Conv,
    /// What the convolution made.
    between: Tensor,
    norm: DeviceNorm,
    gamma: Weight,
    beta: Weight,
}

impl Node {
    fn affine(&self) -> [&Tensor; 2] {
        [self.gamma.tensor(), self.beta.tensor()]
    }

    fn forward(&self, gpu: &Gpu, residual: Option<Address>) -> Result<(CudaStorage, Shape)> {
        let between = cuda::of_tensor(&self.between)?;
        let y = self.norm.apply(gpu, between, self.affine(), residual)?;
        Ok((y, Shape::from(self.conv.shape.clone())))
    }

    /// Gradients of x and the weight; over `dy` that of the residual.
    fn backward(&self, [x, weight]: [&Tensor; 2], y: &Tensor, dy: &Tensor) -> Result<Gradients> {
        let (gpu, between) = (Gpu::of_tensor(dy)?, cuda::of_tensor(&self.between)?);
        let found = self.norm.backward(&gpu, between, self.affine(), y, dy)?;
        self.beta.destination().send_tensor(found.beta, self.beta.tensor())?;
        self.gamma.destination().send_tensor(found.gamma, self.gamma.tensor())?;
        let pulled = cuda::wrap(found.x, dy.shape());
        self.conv.pull_on_gpu(&gpu, x, weight, cuda::of_tensor(&pulled)?)
    }
}

fn not_here() -> Result<(CpuStorage, Shape)> {
    bail!("a convolution that was made for the GPU")
}

impl CustomOp2 for Node {
    fn name(&self) -> &'static str {
        "conv2d-batch-norm"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        not_here()
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.forward(&Gpu::of(x), None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradients = self.backward([x, weight], y, &dy.contiguous()?)?;
        Ok((gradients.dx, gradients.dw))
    }
}

impl CustomOp3 for Node {
    fn name(&self) -> &'static str {
        "conv2d-batch-norm-residual"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        not_here()
    }

    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        residual: &CudaStorage,
        residual_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.forward(&Gpu::of(x), Some(cuda::of_storage(residual, residual_layout)?))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _residual: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let gradients = self.backward([x, weight], y, &dy)?;
        Ok((gradients.dx, gradients.dw, Some(dy)))
    }
}
