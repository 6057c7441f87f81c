//! Shortcuts without parameters round layers that change the shape (He et al., 2016, option A).

use candle_core::{Result, Shape, Tensor, bail};

use super::chain;
use super::operation::{Gradients, Input, Operation};
use super::simd::build_rows;
use super::storage::{read, tensor};

/// Every `stride`-th row and column, with channels of zeros on both sides: (n, h, w, c) -> (n, h /
/// stride, w / stride, channels) with sizes rounded up, f32.
pub fn padded_shortcut(x: &Tensor, stride: usize, channels: usize) -> Result<Tensor> {
    let (_, _, _, c) = x.dims4()?;
    if channels < c || stride == 0 {
        bail!("{c} channels padded to {channels} with stride {stride}");
    }
    chain::apply([x], PaddedShortcut { stride, channels })
}

pub(super) struct PaddedShortcut {
    stride: usize,
    channels: usize,
}

impl PaddedShortcut {
    /// Rows, columns and first channel of the output of an image.
    fn output_layout(&self, (_, h, w, c): (usize, usize, usize, usize)) -> [usize; 3] {
        [h.div_ceil(self.stride), w.div_ceil(self.stride), (self.channels - c) / 2]
    }

    /// By operations of Candle.
    #[cfg(any(test, feature = "cuda"))]
    pub(super) fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let (x, (n, h, w, c)) = (x.detach(), x.dims4()?);
        let ([oh, ow, first], s) = (self.output_layout((n, h, w, c)), self.stride);
        let x = x.pad_with_zeros(1, 0, oh * s - h)?.pad_with_zeros(2, 0, ow * s - w)?;
        let x = x.reshape((n, oh, s, ow, s * c))?.narrow(2, 0, 1)?.narrow(4, 0, c)?;
        let x = x.contiguous()?.reshape((n, oh, ow, c))?;
        x.pad_with_zeros(3, first, self.channels - c - first)
    }

    /// The way of the gradient to `x`.
    #[cfg(any(test, feature = "cuda"))]
    pub(super) fn composed_gradient(&self, x: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let (n, h, w, c) = x.dims4()?;
        let ([oh, ow, first], s) = (self.output_layout((n, h, w, c)), self.stride);
        let dy = dy.detach().narrow(3, first, c)?.contiguous()?.reshape((n, oh, 1, ow, c))?;
        let dx = dy.pad_with_zeros(4, 0, (s - 1) * c)?.pad_with_zeros(2, 0, s - 1)?;
        dx.reshape((n, oh * s, ow * s, c))?.narrow(1, 0, h)?.narrow(2, 0, w)?.contiguous()
    }
}

impl Operation for PaddedShortcut {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "padded-shortcut";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let (n, h, w, c) = x.shape.dims4()?;
        let [rows, columns, first] = self.output_layout((n, h, w, c));
        let y = build_rows(n * rows * columns * self.channels, self.channels, |start, y| {
            for (i, y) in y.chunks_exact_mut(self.channels).enumerate() {
                let pixel = start / self.channels + i;
                let image = pixel / (rows * columns);
                let row = pixel / columns % rows;
                let at = (image * h + row * self.stride) * w + pixel % columns * self.stride;
                y[first..first + c].copy_from_slice(&x.values[at * c..][..c]);
            }
        });
        Ok((y, Shape::from((n, rows, columns, self.channels))))
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let (n, h, w, c) = x.dims4()?;
        let ([rows, columns, first], stride) = (self.output_layout((n, h, w, c)), self.stride);
        let dx = read([&dy], |[dy]| {
            Ok(build_rows(n * h * w * c, c, |start, dx| {
                for (i, dx) in dx.chunks_exact_mut(c).enumerate() {
                    let pixel = start / c + i;
                    let image = pixel / (h * w);
                    let y = pixel / w % h;
                    let x = pixel % w;
                    if y % stride == 0 && x % stride == 0 {
                        let from = (image * rows + y / stride) * columns + x / stride;
                        dx.copy_from_slice(&dy[from * self.channels + first..][..c]);
                    }
                }
            }))
        })?;
        Ok([Some(tensor(dx, x.shape())?)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use test_support::assert_refused;

    use super::super::testing::{check_gradients, values};
    use super::*;

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for (stride, channels) in [(1, 6), (2, 6), (3, 2), (2, 5)] {
            let slow = |v: &[Vec<f64>]| -> Vec<f64> {
                let (oh, ow, first) =
                    (5usize.div_ceil(stride), 4usize.div_ceil(stride), (channels - 2) / 2);
                let mut y = vec![0.0; 2 * oh * ow * channels];
                for (i, y) in y.iter_mut().enumerate() {
                    let (c, pixel) = (i % channels, i / channels);
                    let (image, row, column) = (pixel / (oh * ow), pixel / ow % oh, pixel % ow);
                    if (first..first + 2).contains(&c) {
                        let at = (image * 5 + row * stride) * 4 + column * stride;
                        *y = v[0][at * 2 + c - first];
                    }
                }
                y
            };
            let op = |t: &[Tensor]| padded_shortcut(&t[0], stride, channels);
            check_gradients(&[&[2, 5, 4, 2]], op, slow, 1e-6);
        }
    }

    #[test]
    fn candles_operations_give_the_same() -> Result<()> {
        let x = Var::from_vec(values("x", 0, 80), (2, 5, 4, 2), &Device::Cpu)?;
        let flat = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
        for (stride, channels) in [(1, 6), (2, 6), (3, 2), (2, 5)] {
            let y = padded_shortcut(&x, stride, channels)?;
            let dy = Tensor::from_vec(values("dy", 0, y.elem_count()), y.shape(), &Device::Cpu)?;
            let gradients = (&y * &dy)?.sum_all()?.backward()?;
            let op = PaddedShortcut { stride, channels };
            assert_eq!(flat(&y)?, flat(&op.composed(&x)?)?);
            assert_eq!(flat(gradients.get(&x).unwrap())?, flat(&op.composed_gradient(&x, &dy)?)?);
        }
        assert_refused(padded_shortcut(&x, 2, 1), "2 channels padded to 1");
        Ok(())
    }
}
