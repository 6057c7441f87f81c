//! Transposed convolution along a line: each input value is spread over the outputs that a convolution would
//! have read it from. Forward is the convolution's gradient of its input, and the other way round.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor, bail};

use super::algorithm::Algorithm;
use super::geometry::Geometry;
use super::{ConvOptions, Sliding};
use crate::Precision;
use crate::ops::bias::column_sums;
use crate::ops::chain;
#[cfg(feature = "cuda")]
use crate::ops::cuda::{self, Gpu};
use crate::ops::precision::{round, rounded};
use crate::ops::storage::{output, read, slice, tensor};
use crate::ops::weight::{Destination, Weight};

/// `torch.nn.functional.conv_transpose1d`, with activations in NLC.
///
/// x (n, l, ci), weight (ci, co, k), bias (co) -> (n, (l - 1) stride - 2 padding + k, co), f32, without groups.
/// Rounds as [`super::conv1d`].
///
/// # Errors
///
/// The channels differ, or nothing is left of the line.
pub fn conv_transpose1d(
    x: &Tensor,
    weight: &Weight,
    bias: &Weight,
    options: ConvOptions,
) -> Result<Tensor> {
    let ((n, l, ci), (inputs, co, k)) = (x.dims3()?, weight.tensor().dims3()?);
    let (stride, padding) = (options.window.stride, options.window.padding);
    if ci != inputs || bias.tensor().dims() != [co] || options.groups != 1 {
        let (weight, bias) = (weight.tensor().dims(), bias.tensor().dims());
        bail!("a transposed convolution of {:?} by {weight:?} and {bias:?}", x.dims());
    }
    let length = (l.saturating_sub(1) * stride + k).checked_sub(2 * padding).filter(|&n| n > 0);
    let Some(length) = length else { bail!("a padding of {padding} takes all of {l} values") };
    let sliding = Sliding { stride: [1, stride], padding: [0, padding], groups: 1 };
    let geometry = Geometry::new((n, 1, length, co), (ci, co, 1, k), sliding)?;
    let op = Transposed {
        geometry,
        algorithm: Algorithm::of(&geometry, options.convolutions),
        precision: options.precision,
        #[cfg(feature = "cuda")]
        convolutions: options.convolutions,
        dw: weight.destination(),
        db: bias.destination(),
    };
    chain::apply3(&x.contiguous()?, weight.tensor(), bias.tensor(), op)
}

struct Transposed {
    /// Of the convolution that this is the transpose of: from outputs (n, length, co) to inputs (n, l, ci).
    geometry: Geometry,
    algorithm: Algorithm,
    precision: Precision,
    #[cfg(feature = "cuda")]
    convolutions: crate::Convolutions,
    dw: Destination,
    db: Destination,
}

impl Transposed {
    fn values(&self, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
        let (x, weight) = (rounded(x, self.precision), rounded(weight, self.precision));
        let mut y = self.algorithm.backward_data(&self.geometry, &x, &weight);
        let bias = rounded(bias, self.precision);
        for place in y.chunks_exact_mut(bias.len()) {
            place.iter_mut().zip(&*bias).for_each(|(y, bias)| *y += bias);
        }
        round(&mut y, self.precision);
        y
    }

    #[cfg(feature = "cuda")]
    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> cuda::Conv<'a> {
        let Self { geometry, precision, convolutions, .. } = self;
        cuda::Conv { gpu, geometry, precision: *precision, convolutions: *convolutions }
    }

    #[cfg(feature = "cuda")]
    fn backward_on_gpu(
        &self,
        [x, weight, bias]: [&Tensor; 3],
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let dy = dy.contiguous()?;
        let gpu = Gpu::of_tensor(&dy)?;
        let [x_at, weight_at, dy_at] = [x, weight, &dy].map(cuda::of_tensor);
        let gradients = self.on_gpu(&gpu).transposed_gradients(x_at?, weight_at?, dy_at?)?;
        let [dx, dw, db] = gradients;
        let db = self.db.send_tensor(cuda::wrap(db, bias.shape()), bias)?;
        let dw = self.dw.send_tensor(cuda::wrap(dw, weight.shape()), weight)?;
        Ok((Some(cuda::wrap(dx, x.shape())), dw, db))
    }
}

impl CustomOp3 for Transposed {
    fn name(&self) -> &'static str {
        "conv-transpose1d-nlc"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let bias = slice(bias, bias_layout)?;
        let y = self.values(slice(x, x_layout)?, slice(weight, weight_layout)?, bias);
        let Geometry { n, w, ci, .. } = self.geometry;
        Ok(output(y, (n, w, ci)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
        bias: &CudaStorage,
        bias_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let [x_at, weight_at, bias_at] = [
            cuda::of_storage(x, x_layout)?,
            cuda::of_storage(weight, weight_layout)?,
            cuda::of_storage(bias, bias_layout)?,
        ];
        let gpu = Gpu::of(x);
        let y = self.on_gpu(&gpu).transposed(x_at, weight_at, bias_at)?;
        let Geometry { n, w, ci, .. } = self.geometry;
        Ok((y, (n, w, ci).into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        #[cfg(feature = "cuda")]
        if dy.device().is_cuda() {
            return self.backward_on_gpu([x, weight, bias], dy);
        }
        let (algorithm, g) = (self.algorithm, &self.geometry);
        read([x, weight, dy], |[x_values, weight_values, dy]| {
            let dy = rounded(dy, self.precision);
            let rounded_to = |mut values: Vec<f32>| {
                round(&mut values, self.precision);
                values
            };
            let db = self.db.send(rounded_to(column_sums(&dy, g.ci)), bias)?;
            let x_values = rounded(x_values, self.precision);
            let dw = algorithm.backward_weight(g, &dy, &x_values);
            let dw = self.dw.send(rounded_to(dw), weight)?;
            let dx = if x.track_op() {
                let weight_values = rounded(weight_values, self.precision);
                let dx = algorithm.forward(g, &dy, &weight_values);
                Some(tensor(rounded_to(dx), x.shape())?)
            } else {
                None
            };
            Ok((dx, dw, db))
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;
    use crate::Convolutions;
    use crate::ops::Window;
    use crate::ops::testing::check_weights;

    fn options(stride: usize, padding: usize) -> ConvOptions {
        ConvOptions {
            window: Window { stride, padding },
            groups: 1,
            precision: Precision::Fp32,
            convolutions: Convolutions::Fast,
        }
    }

    /// Each input times each tap, added where it falls.
    fn spread(
        t: &[Vec<f64>],
        [n, l, ci, co, k]: [usize; 5],
        stride: usize,
        padding: usize,
    ) -> Vec<f64> {
        let length = (l - 1) * stride + k - 2 * padding;
        let mut y: Vec<f64> = (0..n * length * co).map(|i| t[2][i % co]).collect();
        for (sample, at, c, o, tap) in (0..n * l * ci * co * k).map(|i| {
            (i / (l * ci * co * k), i / (ci * co * k) % l, i / (co * k) % ci, i / k % co, i % k)
        }) {
            if let Some(to) = (at * stride + tap).checked_sub(padding).filter(|&to| to < length) {
                y[(sample * length + to) * co + o] +=
                    t[0][(sample * l + at) * ci + c] * t[1][(c * co + o) * k + tap];
            }
        }
        y
    }

    #[test]
    fn values_and_gradients_are_those_of_the_definition() {
        for ([n, l, ci, co, k], stride, padding) in
            [([2, 4, 3, 5, 4], 2, 1), ([1, 3, 2, 2, 5], 3, 0), ([2, 5, 4, 1, 3], 1, 1)]
        {
            check_weights(
                &[&[n, l, ci], &[ci, co, k], &[co]],
                |t| conv_transpose1d(t[0].tensor(), &t[1], &t[2], options(stride, padding)),
                |t| spread(t, [n, l, ci, co, k], stride, padding),
                1e-4,
            );
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let zeros = |shape: &[usize]| {
            Weight::from(&Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu).unwrap())
        };
        let x = zeros(&[1, 2, 3]);
        for (weight, bias, padding) in [([2, 4, 4], 4, 1), ([3, 4, 4], 5, 1), ([3, 4, 4], 4, 9)] {
            let y =
                conv_transpose1d(x.tensor(), &zeros(&weight), &zeros(&[bias]), options(2, padding));
            assert!(y.is_err());
        }
    }
}
