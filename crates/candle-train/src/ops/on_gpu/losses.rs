//! Losses of classes and of numbers.

use candle_core::{CudaStorage, Result, Shape, Tensor, bail};

use crate::ops::cuda::{self, Gpu};
use crate::ops::fourier::both_signs;
use crate::ops::log_prob::LogProbs;
use crate::ops::loss::{CrossEntropy, Targets};
use crate::ops::operation::{Gradients, OnGpu};
use crate::ops::regression::{Kind, Regression};

impl Targets {
    pub(in crate::ops) fn on_gpu(&self) -> Result<cuda::Targets<'_>> {
        Ok(match self {
            Self::Labels(labels) => cuda::Targets::Labels(labels),
            Self::LabelsOnGpu(labels) => cuda::Targets::LabelsOnGpu(cuda::of_tensor(labels)?),
            Self::Probabilities(targets) => cuda::Targets::Probabilities(cuda::of_tensor(targets)?),
        })
    }
}

impl OnGpu for CrossEntropy {
    fn forward_on(&self, gpu: &Gpu, [logits]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        let logits = cuda::Logits::of(logits)?;
        let targets = self.targets.on_gpu()?;
        let Self { smoothing, divisor, .. } = *self;
        let (loss, rows) = cuda::CrossEntropy::forward(gpu, logits, &targets, smoothing, divisor)?;
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

impl OnGpu for LogProbs {
    fn has_kernels(&self) -> bool {
        false
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
        let differences = cuda::Differences::of([prediction, target], self.0.is_absolute())?;
        Ok((differences.mean(gpu)?, ().into()))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        [prediction, target]: [&Tensor; 2],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let differences = cuda::Differences::of([prediction, target], self.0.is_absolute())?;
        let slopes = differences.gradient(gpu, cuda::of_tensor(&dy)?)?;
        both_signs(cuda::wrap(slopes, prediction.shape()), target)
    }
}
