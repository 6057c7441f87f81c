//! Pooling over images, NHWC.

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::conv::Window;
use super::im2col::output_size;
use super::storage::{output, read, slice, tensor};

/// Largest value of each kernel x kernel window: (n, h, w, c) -> (n, oh, ow, c), f32.
///
/// Padding counts as minus infinity. The gradient goes to the first maximum of a window in row-major
/// order, and NaN
/// wins over numbers, both as `torch.nn.functional.max_pool2d`.
///
/// # Errors
///
/// A window that does not fit, or padding of more than half of it.
pub fn max_pool2d(x: &Tensor, kernel: usize, window: Window) -> Result<Tensor> {
    let (n, h, w, c) = x.dims4()?;
    if window.padding * 2 > kernel {
        bail!("pooling pads by {}, more than half of its window of {kernel}", window.padding);
    }
    let oh = output_size(h, kernel, window.stride, window.padding)?;
    let ow = output_size(w, kernel, window.stride, window.padding)?;
    x.contiguous()?.apply_op1(MaxPool { n, h, w, c, oh, ow, kernel, window })
}

struct MaxPool {
    n: usize,
    h: usize,
    w: usize,
    c: usize,
    oh: usize,
    ow: usize,
    kernel: usize,
    window: Window,
}

impl MaxPool {
    /// Calls `visit(output offset, input offset)` for each pair of pixels of one image, in window order.
    fn for_each_pair(&self, mut visit: impl FnMut(usize, usize)) {
        let Window { stride, padding } = self.window;
        for (oy, ox) in (0..self.oh).flat_map(|oy| (0..self.ow).map(move |ox| (oy, ox))) {
            let rows = (oy * stride).saturating_sub(padding)
                ..(oy * stride + self.kernel - padding.min(oy * stride + self.kernel)).min(self.h);
            for y in rows {
                let cols = (ox * stride).saturating_sub(padding)
                    ..(ox * stride + self.kernel - padding.min(ox * stride + self.kernel))
                        .min(self.w);
                for x in cols {
                    visit((oy * self.ow + ox) * self.c, (y * self.w + x) * self.c);
                }
            }
        }
    }

    /// Maxima of one image, and the input offset of each.
    fn maxima(&self, x: &[f32], y: &mut [f32], from: &mut [u32]) {
        y.fill(f32::NEG_INFINITY);
        from.fill(u32::MAX);
        self.for_each_pair(|out, at| {
            let values = &x[at..at + self.c];
            let best = y[out..out + self.c].iter_mut().zip(&mut from[out..out + self.c]);
            for (channel, (value, (best, from))) in values.iter().zip(best).enumerate() {
                if *value > *best || *from == u32::MAX || value.is_nan() {
                    (*best, *from) = (*value, (at + channel) as u32);
                }
            }
        });
    }
}

impl CustomOp1 for MaxPool {
    fn name(&self) -> &'static str {
        "max-pool2d-nhwc"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (image, out) = (self.h * self.w * self.c, self.oh * self.ow * self.c);
        let mut y = vec![0.0; self.n * out];
        let images = y.par_chunks_mut(out).zip(slice(x, layout)?.par_chunks(image));
        images.for_each_init(|| vec![0; out], |from, (y, x)| self.maxima(x, y, from));
        Ok(output(y, (self.n, self.oh, self.ow, self.c)))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        let (image, out) = (self.h * self.w * self.c, self.oh * self.ow * self.c);
        read([x, dy], |[x_values, dy]| {
            let mut dx = vec![0.0; x_values.len()];
            let images =
                dx.par_chunks_mut(image).zip(x_values.par_chunks(image)).zip(dy.par_chunks(out));
            // Finding the maxima again costs less than keeping their places in memory.
            images.for_each_init(
                || (vec![0.0; out], vec![0; out]),
                |(y, from), ((dx, x), dy)| {
                    self.maxima(x, y, from);
                    from.iter().zip(dy).for_each(|(&at, g)| dx[at as usize] += g);
                },
            );
            Ok(Some(tensor(dx, x.shape())?))
        })
    }
}

/// Mean over the pixels of each image: (n, h, w, c) -> (n, c), f32.
///
/// # Errors
///
/// Not four dimensions, or not f32 on the CPU.
pub fn global_average_pool(x: &Tensor) -> Result<Tensor> {
    let (n, h, w, c) = x.dims4()?;
    x.contiguous()?.apply_op1(AveragePool { n, pixels: h * w, c })
}

struct AveragePool {
    n: usize,
    pixels: usize,
    c: usize,
}

impl CustomOp1 for AveragePool {
    fn name(&self) -> &'static str {
        "global-average-pool"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut y = vec![0.0; self.n * self.c];
        let images = slice(x, layout)?.par_chunks(self.pixels * self.c);
        y.par_chunks_mut(self.c).zip(images).for_each(|(y, x)| {
            for pixel in x.chunks_exact(self.c) {
                for (sum, value) in y.iter_mut().zip(pixel) {
                    *sum += value;
                }
            }
            for sum in y {
                *sum /= self.pixels as f32;
            }
        });
        Ok(output(y, (self.n, self.c)))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        read([dy], |[dy]| {
            let mut dx = vec![0.0; x.elem_count()];
            let images = dx.par_chunks_mut(self.pixels * self.c).zip(dy.par_chunks(self.c));
            images.for_each(|(dx, dy)| {
                for pixel in dx.chunks_exact_mut(self.c) {
                    pixel.iter_mut().zip(dy).for_each(|(dx, g)| *dx = g / self.pixels as f32);
                }
            });
            Ok(Some(tensor(dx, x.shape())?))
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::super::testing::check_gradients;
    use super::*;

    fn slow_max(x: &[f64], [n, h, w, c]: [usize; 4], k: usize, window: Window) -> Vec<f64> {
        let Window { stride: s, padding: p } = window;
        let (oh, ow) = ((h + 2 * p - k) / s + 1, (w + 2 * p - k) / s + 1);
        let mut y = vec![f64::NEG_INFINITY; n * oh * ow * c];
        for (i, y) in y.iter_mut().enumerate() {
            let (ch, ox, oy, image) = (i % c, i / c % ow, i / c / ow % oh, i / c / ow / oh);
            for (ky, kx) in (0..k).flat_map(|a| (0..k).map(move |b| (a, b))) {
                let (yy, xx) = ((oy * s + ky).wrapping_sub(p), (ox * s + kx).wrapping_sub(p));
                if yy < h && xx < w {
                    *y = y.max(x[((image * h + yy) * w + xx) * c + ch]);
                }
            }
        }
        y
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        let cases = [
            ([1, 1, 1, 1], 1, 1, 0),
            ([2, 5, 7, 3], 3, 2, 1),
            ([1, 4, 6, 2], 2, 2, 0),
            ([1, 7, 5, 1], 3, 1, 1),
            ([1, 2, 2, 1], 3, 2, 1),
        ];
        for (shape, kernel, stride, padding) in cases {
            let window = Window { stride, padding };
            check_gradients(
                &[&shape],
                |t| max_pool2d(&t[0], kernel, window),
                |v| slow_max(&v[0], shape, kernel, window),
                1e-5,
            );
        }
        check_gradients(
            &[&[3, 2, 5, 2]],
            |t| global_average_pool(&t[0]),
            |v| {
                let mean =
                    |i: usize| (0..10).map(|p| v[0][i / 2 * 20 + p * 2 + i % 2]).sum::<f64>();
                (0..6).map(|i| mean(i) / 10.0).collect()
            },
            1e-5,
        );
    }

    #[test]
    fn the_first_of_equal_maxima_gets_the_gradient_and_nan_wins() -> Result<()> {
        let window = Window { stride: 2, padding: 0 };
        let ties = Var::from_vec(vec![0.0f32, 1.0, 1.0, 1.0], (1, 2, 2, 1), &Device::Cpu)?;
        let gradients = max_pool2d(&ties, 2, window)?.sum_all()?.backward()?;
        let gradient = gradients.get(&ties).unwrap().flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(gradient, [0.0, 1.0, 0.0, 0.0]);
        let lost = Tensor::from_vec(vec![0.0f32, f32::NAN, 1.0, 9.0], (1, 2, 2, 1), &Device::Cpu)?;
        let y = max_pool2d(&lost, 2, window)?.flatten_all()?.to_vec1::<f32>()?;
        assert!(y[0].is_nan());
        Ok(())
    }

    #[test]
    fn too_much_padding_is_refused() {
        let x = Tensor::zeros((1, 4, 4, 1), candle_core::DType::F32, &Device::Cpu).unwrap();
        assert!(max_pool2d(&x, 2, Window { stride: 2, padding: 2 }).is_err());
    }
}
