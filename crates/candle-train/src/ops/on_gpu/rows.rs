//! Row by row: softmax, layer, root-mean-square and group normalisation.

use candle_core::{CudaStorage, Result, Shape, Tensor};

use crate::ops::cuda::{self, Gpu};
use crate::ops::group_norm::GroupNorm;
use crate::ops::operation::{Gradients, OnGpu, TwoOrThree};
use crate::ops::row_norm::{Kind, RowNorm};
use crate::ops::softmax::Softmax;

impl OnGpu for Softmax {
    fn forward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        let rows = x.elem_count() / self.c;
        Ok((cuda::softmax(gpu, cuda::of_tensor(x)?, rows, self.c)?, x.shape().clone()))
    }

    fn backward_on(&self, gpu: &Gpu, _: [&Tensor; 1], y: &Tensor, dy: Tensor) -> Gradients<Self> {
        let y = cuda::of_tensor(y)?;
        let at = cuda::of_tensor(&dy)?;
        cuda::softmax_gradient(gpu, y, at, dy.elem_count() / self.c, self.c)?;
        Ok([Some(dy)])
    }
}

impl RowNorm {
    fn on_gpu(&self, elements: usize, c: usize) -> cuda::RowNorm {
        cuda::RowNorm { eps: self.eps, rms: self.kind == Kind::Rms, rows: elements / c, c }
    }

    /// Factors of the values of a row.
    fn factors_on_gpu(&self, gamma: &Tensor) -> Result<Tensor> {
        let gamma = gamma.detach();
        if self.offset == 0.0 { Ok(gamma) } else { gamma + f64::from(self.offset) }
    }
}

impl OnGpu for RowNorm {
    fn forward_on(
        &self,
        gpu: &Gpu,
        ([x, gamma], residual): TwoOrThree<&Tensor>,
    ) -> Result<(CudaStorage, Shape)> {
        let factors = self.factors_on_gpu(gamma)?;
        let operands = [cuda::of_tensor(x)?, cuda::of_tensor(&factors)?];
        let residual = residual.map(cuda::of_tensor).transpose()?;
        let beta = self.beta.as_ref().map(|beta| cuda::of_tensor(beta.tensor())).transpose()?;
        let norm = self.on_gpu(x.elem_count(), gamma.elem_count());
        Ok((norm.forward(gpu, operands, residual, beta)?, x.shape().clone()))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        ([x, gamma], residual): TwoOrThree<&Tensor>,
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let c = gamma.elem_count();
        let factors = self.factors_on_gpu(gamma)?;
        let operands = [cuda::of_tensor(x)?, cuda::of_tensor(&factors)?, cuda::of_tensor(&dy)?];
        let residual = residual.map(cuda::of_tensor).transpose()?;
        let norm = self.on_gpu(dy.elem_count(), c);
        let (of_gamma, of_beta) = norm.backward(gpu, operands, residual, self.beta.is_some())?;
        if let (Some(beta), Some(gradient)) = (&self.beta, of_beta) {
            beta.destination().send_tensor(cuda::wrap(gradient, c), beta.tensor())?;
        }
        let of_gamma = self.d_gamma.send_tensor(cuda::wrap(of_gamma, c), gamma)?;
        // The residual's is that of x.
        Ok(([Some(dy.clone()), of_gamma], Some(Some(dy))))
    }
}

impl GroupNorm {
    fn on_gpu(&self, elements: usize, c: usize) -> cuda::GroupNorm {
        let samples = elements / self.sample.max(1);
        let positions = self.sample / c;
        cuda::GroupNorm { eps: self.eps, samples, positions, groups: self.groups, c }
    }
}

impl OnGpu for GroupNorm {
    fn forward_on(
        &self,
        gpu: &Gpu,
        [x, gamma, beta]: [&Tensor; 3],
    ) -> Result<(CudaStorage, Shape)> {
        let operands = [cuda::of_tensor(x)?, cuda::of_tensor(gamma)?, cuda::of_tensor(beta)?];
        let norm = self.on_gpu(x.elem_count(), gamma.elem_count());
        Ok((norm.forward(gpu, operands)?, x.shape().clone()))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        [x, gamma, beta]: [&Tensor; 3],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let c = gamma.elem_count();
        let operands = [cuda::of_tensor(x)?, cuda::of_tensor(gamma)?, cuda::of_tensor(&dy)?];
        let norm = self.on_gpu(dy.elem_count(), c);
        let [of_gamma, of_beta] =
            norm.backward(gpu, operands)?.map(|gradient| cuda::wrap(gradient, c));
        let [to_gamma, to_beta] = &self.destinations;
        // The shift's leaves first: it was registered last.
        let of_beta = to_beta.send_tensor(of_beta, beta)?;
        Ok([Some(dy), to_gamma.send_tensor(of_gamma, gamma)?, of_beta])
    }
}
