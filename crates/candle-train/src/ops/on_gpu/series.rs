//! Series: positions, scales, and their loss over time and frequencies.

use candle_core::{CudaStorage, Result, Shape, Tensor};

use crate::ops::cuda::{self, Gpu};
use crate::ops::fourier::{TimeFrequency, both_signs};
use crate::ops::instance_norm::Denormalise;
use crate::ops::operation::{Gradients, OnGpu};
use crate::ops::rotary::{Rotary, angles};

impl Rotary {
    /// Cosines and sines in a table (2, t, d / 2).
    fn table(&self, gpu: &Gpu) -> Result<Tensor> {
        let [t, _, d] = self.sizes;
        let key = ("angles", [t as u64].into_iter().chain(self.rope.numbers()).collect());
        cuda::table(gpu, key, (2, t, d / 2), || angles(t, &self.rope).concat())
    }
}

impl OnGpu for Rotary {
    /// The kernel counts positions by the places of a sample, and turns all features.
    fn has_kernels(&self) -> bool {
        self.positions.is_empty() && 2 * self.rope.pairs() == self.sizes[2]
    }

    fn forward_on(&self, gpu: &Gpu, [x]: [&Tensor; 1]) -> Result<(CudaStorage, Shape)> {
        let angles = self.table(gpu)?;
        let rotation = cuda::Rotation { sizes: self.sizes, angles: &angles, sign: 1.0 };
        Ok((rotation.apply(gpu, cuda::of_tensor(x)?, x.elem_count())?, x.shape().clone()))
    }

    /// The inverse of a rotation is its transpose.
    fn backward_on(&self, gpu: &Gpu, _: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let angles = self.table(gpu)?;
        let at = cuda::of_tensor(&dy)?;
        let rotation = cuda::Rotation { sizes: self.sizes, angles: &angles, sign: -1.0 };
        rotation.run(gpu, [at, at], dy.elem_count())?;
        Ok([Some(dy)])
    }
}

/// Forecasts on a GPU are composed of Candle's operations.
impl OnGpu for Denormalise {}

impl TimeFrequency {
    /// Gives this loss, with its basis on the GPU, to `compute`.
    fn with_basis<R>(
        &self,
        gpu: &Gpu,
        compute: impl FnOnce(cuda::Spectra<'_>) -> Result<R>,
    ) -> Result<R> {
        let key = ("frequencies", vec![self.steps as u64]);
        let basis = cuda::table(gpu, key, (self.steps, self.width()), || self.basis())?;
        let sizes = [self.n, self.steps, self.series];
        compute(cuda::Spectra { sizes, basis: &basis, weights: self.weights() })
    }
}

impl OnGpu for TimeFrequency {
    fn forward_on(
        &self,
        gpu: &Gpu,
        [prediction, target]: [&Tensor; 2],
    ) -> Result<(CudaStorage, Shape)> {
        let operands = [cuda::of_tensor(prediction)?, cuda::of_tensor(target)?];
        Ok((self.with_basis(gpu, |spectra| spectra.loss(gpu, operands))?, ().into()))
    }

    fn backward_on(
        &self,
        gpu: &Gpu,
        [prediction, target]: [&Tensor; 2],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let [p, t, at] = [prediction, target, &dy].map(cuda::of_tensor);
        let operands = [p?, t?, at?];
        let gradient = self.with_basis(gpu, |spectra| spectra.gradient(gpu, operands))?;
        both_signs(cuda::wrap(gradient, prediction.shape()), target)
    }
}
