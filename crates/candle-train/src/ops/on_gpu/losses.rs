//! Losses of classes and of numbers.

use candle_core::{CudaStorage, Result, Shape, Tensor, bail};

use crate::ops::cuda::{self, Gpu};
use crate::ops::fourier::both_signs;
use crate::ops::loss::{CrossEntropy, Targets};
use crate::ops::operation::{Gradients, OnGpu};
use crate::ops::regression::{Kind, Regression};

impl Targets {
    fn on_gpu(&self) -> Result<cuda::Targets<'_>> {
        Ok(match self {
            Self::Labels(labels) => cuda::Targets::Labels(labels),
            Self::Placed(labels) => cuda::Targets::Placed(cuda::of_tensor(labels)?),
            Self::Probabilities(targets) => cuda::Targets::Probabilities(cuda::of_tensor(targets)?),
        })
    }
}

impl OnGpu for CrossEntropy {
    fn forward_on(&self, gpu: &Gpu, [logits]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        let (sizes, at) = (logits.dims2()?, cuda::of_tensor(logits)?);
        let targets = self.targets.on_gpu()?;
        let numbers = (self.smoothing, self.divisor);
        let (loss, rows) = cuda::CrossEntropy::forward(gpu, at, &targets, sizes, numbers)?;
        self.rows.keep_on_gpu(rows);
        Ok((loss, ().into()))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        [logits]: [&Tensor; 1],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let Some(rows) = self.rows.on_gpu::<cuda::CrossEntropy>() else {
            bail!("backward of a loss that was not computed")
        };
        Ok([Some(rows.backward(gpu, logits, &dy)?)])
    }
}

impl Kind {
    pub(in crate::ops) fn is_absolute(self) -> bool {
        matches!(self, Self::Absolute)
    }
}

impl OnGpu for Regression {
    fn forward_on(
        &self,
        gpu: &Gpu,
        [prediction, target]: [&Tensor; 2],
    ) -> Result<(CudaStorage, Shape)> {
        let operands = [cuda::of_tensor(prediction)?, cuda::of_tensor(target)?];
        let absolute = self.0.is_absolute();
        let loss = cuda::regression(gpu, operands, absolute, prediction.elem_count())?;
        Ok((loss, ().into()))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        [prediction, target]: [&Tensor; 2],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let [p, t, at] = [prediction, target, &dy].map(cuda::of_tensor);
        let (absolute, n) = (self.0.is_absolute(), prediction.elem_count());
        let slopes = cuda::regression_gradient(gpu, [p?, t?, at?], absolute, n)?;
        both_signs(cuda::wrap(slopes, prediction.shape()), target)
    }
}
