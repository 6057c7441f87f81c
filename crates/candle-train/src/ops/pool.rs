//! Pooling over images, NHWC.

use candle_core::{DType, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
use super::conv::{Rounding, SlidingWindow, Window};
use super::element::{Element, WideBuffer};
use super::half_precision::is_held_in_bf16;
use super::operation::{Gradients, Input, Operation, SavedForBackward};
use super::saved::Saved;
use super::scratch::{filled_blocks, zeros};
use super::simd::{build_rows, vectorised};
use super::storage::{read, read_of, tensor};

/// Largest value of each kernel x kernel window: (n, h, w, c) -> (n, oh, ow, c), f32.
///
/// Padding counts as minus infinity. The gradient goes to the first maximum of a window in
/// row-major order, and NaN wins over numbers, both as `torch.nn.functional.max_pool2d`. x may be
/// in bf16, and on a GPU in f16, and so is the result then.
pub fn max_pool2d(x: &Tensor, kernel: usize, window: Window) -> Result<Tensor> {
    max_pool2d_over(x, [kernel; 2], window.into(), Rounding::Down)
}

/// [`max_pool2d`] of windows of other rows than columns, with pixels between theirs, or that hang
/// over the edge. Other windows than squares are the CPU's.
pub fn max_pool2d_over(
    x: &Tensor,
    kernel: [usize; 2],
    slides: SlidingWindow,
    rounding: Rounding,
) -> Result<Tensor> {
    let windows = Windows::new(x, kernel, slides, rounding)?;
    let pool = MaxPool { windows, chosen: SavedForBackward::default() };
    if is_held_in_bf16(x) {
        return chain::apply_held(x, pool, |pool, x| (pool.maxima(x), windows.output_shape()));
    }
    chain::apply([x], pool)
}

/// Mean of each kernel x kernel window: (n, h, w, c) -> (n, oh, ow, c), f32. Padding counts as
/// zeros, as in `torch.nn.functional.avg_pool2d` by default. On a GPU the result of half precision
/// is in half precision.
pub fn average_pool2d(x: &Tensor, kernel: usize, window: Window) -> Result<Tensor> {
    average_pool2d_over(x, [kernel; 2], window.into())
}

/// [`average_pool2d`] of windows of other rows than columns, which the CPU computes.
pub fn average_pool2d_over(
    x: &Tensor,
    kernel: [usize; 2],
    slides: SlidingWindow,
) -> Result<Tensor> {
    let windows = Windows::new(x, kernel, slides, Rounding::Down)?;
    chain::apply([x], AveragePool { windows })
}

/// Most pixels of a window: the place of the largest one is kept.
pub const MAX_PIXELS: usize = u16::MAX as usize - 1;

/// Sizes and windows of a pooling.
#[derive(Clone, Copy)]
pub(super) struct Windows {
    pub(super) n: usize,
    pub(super) h: usize,
    pub(super) w: usize,
    pub(super) c: usize,
    pub(super) oh: usize,
    pub(super) ow: usize,
    /// Rows and columns.
    pub(super) kernel: [usize; 2],
    pub(super) slides: SlidingWindow,
    /// Read by the kernels of GPUs.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "asked by `square`"))]
    rounding: Rounding,
}

impl Windows {
    fn new(
        x: &Tensor,
        kernel: [usize; 2],
        slides: SlidingWindow,
        rounding: Rounding,
    ) -> Result<Self> {
        let (n, h, w, c) = x.dims4()?;
        let SlidingWindow { stride, padding, dilation } = slides;
        if kernel[0].saturating_mul(kernel[1]) > MAX_PIXELS {
            bail!("pooling over {kernel:?} pixels, of which {MAX_PIXELS} can be told apart");
        }
        let along = |axis: usize, side| {
            let kernel = kernel[axis];
            let padding = padding[axis];
            if padding * 2 > kernel || dilation[axis] == 0 {
                bail!("pooling pads by {padding}, its window is {kernel} wide");
            }
            let reach = kernel.saturating_sub(1) * dilation[axis] + kernel.min(1);
            rounding.windows(side, reach, stride[axis], padding)
        };
        let oh = along(0, h)?;
        let ow = along(1, w)?;
        Ok(Self { n, h, w, c, oh, ow, kernel, slides, rounding })
    }

    /// Side and window of pooling that is the same along both axes and not dilated, the kind that GPU
    /// kernels exist for.
    #[cfg(feature = "cuda")]
    pub(super) fn square(&self) -> Option<(usize, Window)> {
        let window = Window { stride: self.slides.stride[0], padding: self.slides.padding[0] };
        let is_square =
            self.kernel[0] == self.kernel[1] && self.slides == SlidingWindow::square(window);
        let is_plain = is_square && self.rounding == Rounding::Down;
        is_plain.then_some((self.kernel[0], window))
    }

    pub(super) fn output_shape(&self) -> Shape {
        Shape::from((self.n, self.oh, self.ow, self.c))
    }

    /// Calls `visit(output offset in the row, input offset in the image, place in the window)` for
    /// each pixel of each window of output row `oy`, in window order. `visit` must be
    /// `#[inline(always)]`.
    #[inline(always)]
    fn for_each_pixel(&self, oy: usize, mut visit: impl FnMut(usize, usize, u16)) {
        let SlidingWindow { stride, padding, dilation } = self.slides;
        let [rows, columns] = self.kernel;
        for ox in 0..self.ow {
            for ky in 0..rows {
                let y = (oy * stride[0] + ky * dilation[0]).wrapping_sub(padding[0]);
                if y >= self.h {
                    continue;
                }
                for kx in 0..columns {
                    let x = (ox * stride[1] + kx * dilation[1]).wrapping_sub(padding[1]);
                    if x < self.w {
                        let place = (ky * columns + kx) as u16;
                        visit(ox * self.c, (y * self.w + x) * self.c, place);
                    }
                }
            }
        }
    }

    /// dx: calls `push(row of dx, row of outputs, row in their windows)` for each row of windows
    /// that reaches a row of dx, in their order.
    fn gradient<E: Element>(&self, push: impl Fn(&mut [f32], usize, usize) + Sync) -> Vec<E> {
        let rows = vec![self.w * self.c; self.n * self.h];
        let ([dx], _) = filled_blocks(&rows, |index, [dx]: [&mut [E]; 1]| {
            let image = index / self.h;
            let y = index % self.h;
            E::change(dx, |dx| {
                for (oy, ky) in self.reaching(y) {
                    push(dx, image * self.oh + oy, ky);
                }
            });
        });
        dx
    }

    /// The rows of windows that reach row `y`, and the row of each that does.
    fn reaching(&self, y: usize) -> impl Iterator<Item = (usize, usize)> {
        let SlidingWindow { stride: [stride, _], padding: [padding, _], dilation: [dilation, _] } =
            self.slides;
        let kernel = self.kernel[0];
        (0..self.oh.min((y + padding) / stride + 1)).filter_map(move |oy| {
            let down = y + padding - oy * stride;
            let ky = down / dilation;
            (down.is_multiple_of(dilation) && ky < kernel).then_some((oy, ky))
        })
    }

    /// Calls `visit(output offset in its row, offset in the row of the image, place in the window)`
    /// for each pixel of row `ky` of each window of a row. `visit` must be `#[inline(always)]`.
    #[inline(always)]
    fn for_each_of_row(&self, ky: usize, mut visit: impl FnMut(usize, usize, u16)) {
        let SlidingWindow { stride, padding, dilation } = self.slides;
        let columns = self.kernel[1];
        for ox in 0..self.ow {
            for kx in 0..columns {
                let x = (ox * stride[1] + kx * dilation[1]).wrapping_sub(padding[1]);
                if x < self.w {
                    visit(ox * self.c, x * self.c, (ky * columns + kx) as u16);
                }
            }
        }
    }
}

pub(super) struct MaxPool {
    pub(super) windows: Windows,
    /// Place in its window of each maximum.
    pub(super) chosen: SavedForBackward<Vec<u16>>,
}

impl MaxPool {
    fn maxima<E: Element>(&self, x: &[E]) -> Vec<E> {
        let windows = &self.windows;
        let image = windows.h * windows.w * windows.c;
        let row = windows.ow * windows.c;
        let mut y = zeros(windows.n * windows.oh * row);
        let mut chosen = zeros(y.len());
        let rows = y.par_chunks_mut(row).zip(chosen.par_chunks_mut(row)).enumerate();
        rows.for_each(|(index, (y, chosen))| {
            let image = &x[index / windows.oh * image..][..image];
            let oy = index % windows.oh;
            vectorised(
                #[inline(always)]
                || maxima(windows, oy, image, y, chosen),
            );
        });
        self.chosen.keep(chosen);
        y
    }

    fn gradient<E: Element>(&self, dy: &[E]) -> Result<Vec<E>> {
        let Some(chosen) = self.chosen.get() else { bail!("backward before forward") };
        let windows = &self.windows;
        let c = self.windows.c;
        let row = windows.ow * c;
        Ok(windows.gradient(|dx, index, ky| {
            let chosen = &chosen[index * row..][..row];
            let mut buffer = WideBuffer::default();
            let dy = E::read(&dy[index * row..][..row], &mut buffer);
            vectorised(
                #[inline(always)]
                || {
                    windows.for_each_of_row(
                        ky,
                        #[inline(always)]
                        |out, at, place| {
                            let dy = dy[out..out + c].iter().zip(&chosen[out..out + c]);
                            for (dx, (dy, chosen)) in dx[at..at + c].iter_mut().zip(dy) {
                                *dx += if *chosen == place { *dy } else { 0.0 };
                            }
                        },
                    );
                },
            );
        }))
    }
}

/// One row of maxima of an image, and the place of each in its window.
#[inline(always)]
fn maxima<E: Element>(windows: &Windows, oy: usize, image: &[E], y: &mut [E], chosen: &mut [u16]) {
    let c = windows.c;
    chosen.fill(u16::MAX);
    windows.for_each_pixel(
        oy,
        #[inline(always)]
        |out, at, place| {
            let best = y[out..out + c].iter_mut().zip(&mut chosen[out..out + c]);
            for (x, (best, chosen)) in image[at..at + c].iter().zip(best) {
                let value = x.wide();
                let is_first = *chosen == u16::MAX;
                let better = value > best.wide() || value.is_nan() || is_first;
                *best = if better { *x } else { *best };
                *chosen = if better { place } else { *chosen };
            }
        },
    );
}

impl Operation for MaxPool {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "max-pool2d-nhwc";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        Ok((self.maxima(x.values), self.windows.output_shape()))
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let dx = match dy.dtype() {
            DType::BF16 => Saved::Bf16(read_of([&dy], |[dy]| self.gradient(dy))?),
            _ => Saved::F32(read_of([&dy], |[dy]| self.gradient(dy))?),
        };
        Ok([Some(dx.tensor(x.shape()))])
    }
}

pub(super) struct AveragePool {
    pub(super) windows: Windows,
}

impl AveragePool {
    fn pixels(&self) -> f32 {
        (self.windows.kernel[0] * self.windows.kernel[1]) as f32
    }
}

impl Operation for AveragePool {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "average-pool2d-nhwc";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let windows = &self.windows;
        let pixels = self.pixels();
        let image = windows.h * windows.w * windows.c;
        let row = windows.ow * windows.c;
        let c = windows.c;
        let mut y = zeros(windows.n * windows.oh * row);
        y.par_chunks_mut(row).enumerate().for_each(|(index, y)| {
            let image = &x.values[index / windows.oh * image..][..image];
            vectorised(
                #[inline(always)]
                || {
                    windows.for_each_pixel(
                        index % windows.oh,
                        #[inline(always)]
                        |out, at, _| {
                            let x = &image[at..at + c];
                            for (y, x) in y[out..out + c].iter_mut().zip(x) {
                                *y += x;
                            }
                        },
                    );
                    for y in y.iter_mut() {
                        *y /= pixels;
                    }
                },
            );
        });
        Ok((y, windows.output_shape()))
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let windows = &self.windows;
        let pixels = self.pixels();
        let c = self.windows.c;
        let row = windows.ow * c;
        let gradient = |[dy]: [&[f32]; 1]| {
            Ok(windows.gradient(|dx, index, ky| {
                let dy = &dy[index * row..][..row];
                vectorised(
                    #[inline(always)]
                    || {
                        windows.for_each_of_row(
                            ky,
                            #[inline(always)]
                            |out, at, _| {
                                let dy = &dy[out..out + c];
                                for (dx, g) in dx[at..at + c].iter_mut().zip(dy) {
                                    *dx += g / pixels;
                                }
                            },
                        );
                    },
                );
            }))
        };
        Ok([Some(tensor(read([&dy], gradient)?, x.shape())?)])
    }
}

/// Mean over the pixels of each image: (n, h, w, c) -> (n, c), f32.
pub fn global_average_pool(x: &Tensor) -> Result<Tensor> {
    let (n, h, w, c) = x.dims4()?;
    chain::apply([x], GlobalAveragePool { n, pixels: h * w, c, is_image: false })
}

/// [`global_average_pool`] as an image of one pixel: (n, h, w, c) -> (n, 1, 1, c), f32.
pub fn mean_pixel(x: &Tensor) -> Result<Tensor> {
    let (n, h, w, c) = x.dims4()?;
    chain::apply([x], GlobalAveragePool { n, pixels: h * w, c, is_image: true })
}

pub(super) struct GlobalAveragePool {
    pub(super) n: usize,
    pub(super) pixels: usize,
    pub(super) c: usize,
    /// True if the result is an image of one pixel.
    is_image: bool,
}

impl GlobalAveragePool {
    pub(super) fn output_shape(&self) -> Shape {
        if self.is_image {
            Shape::from((self.n, 1, 1, self.c))
        } else {
            Shape::from((self.n, self.c))
        }
    }
}

impl Operation for GlobalAveragePool {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "global-average-pool";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let mut y = vec![0.0; self.n * self.c];
        let images = x.values.par_chunks(self.pixels * self.c);
        y.par_chunks_mut(self.c).zip(images).for_each(|(y, x)| {
            vectorised(
                #[inline(always)]
                || {
                    for pixel in x.chunks_exact(self.c) {
                        for (sum, value) in y.iter_mut().zip(pixel) {
                            *sum += value;
                        }
                    }
                    for sum in y.iter_mut() {
                        *sum /= self.pixels as f32;
                    }
                },
            );
        });
        Ok((y, self.output_shape()))
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let mut shares = dy.flatten_all()?.to_vec1::<f32>()?;
        for share in &mut shares {
            *share /= self.pixels as f32;
        }
        let dx = build_rows(x.elem_count(), self.c, |start, dx| {
            for (pixel, dx) in dx.chunks_exact_mut(self.c).enumerate() {
                let image = (start / self.c + pixel) / self.pixels;
                dx.copy_from_slice(&shares[image * self.c..][..self.c]);
            }
        });
        Ok([Some(tensor(dx, x.shape())?)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use half::bf16;
    use proptest::prelude::*;
    use test_support::assert_refused;

    use super::super::testing::{check_gradients, flat, on_threads, values};
    use super::*;

    /// A function that folds the pixels of a window.
    #[derive(Clone, Copy)]
    struct Fold {
        start: f64,
        with: fn(f64, f64) -> f64,
    }

    /// Folds the pixels of each window.
    fn slow(x: &[f64], [n, h, w, c]: [usize; 4], k: usize, window: Window, fold: Fold) -> Vec<f64> {
        let Window { stride: s, padding: p } = window;
        let (oh, ow) = ((h + 2 * p - k) / s + 1, (w + 2 * p - k) / s + 1);
        let mut y = vec![fold.start; n * oh * ow * c];
        for (i, y) in y.iter_mut().enumerate() {
            let (ch, ox, oy, image) = (i % c, i / c % ow, i / c / ow % oh, i / c / ow / oh);
            for (ky, kx) in (0..k).flat_map(|a| (0..k).map(move |b| (a, b))) {
                let (yy, xx) = ((oy * s + ky).wrapping_sub(p), (ox * s + kx).wrapping_sub(p));
                if yy < h && xx < w {
                    *y = (fold.with)(*y, x[((image * h + yy) * w + xx) * c + ch]);
                }
            }
        }
        y
    }

    fn slow_max(x: &[f64], shape: [usize; 4], k: usize, window: Window) -> Vec<f64> {
        slow(x, shape, k, window, Fold { start: f64::NEG_INFINITY, with: f64::max })
    }

    fn slow_average(x: &[f64], shape: [usize; 4], k: usize, window: Window) -> Vec<f64> {
        let sums = slow(x, shape, k, window, Fold { start: 0.0, with: |a, b| a + b });
        sums.into_iter().map(|sum| sum / (k * k) as f64).collect()
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
        for (shape, kernel, stride, padding) in cases {
            let window = Window { stride, padding };
            check_gradients(
                &[&shape],
                |t| average_pool2d(&t[0], kernel, window),
                |v| slow_average(&v[0], shape, kernel, window),
                1e-5,
            );
        }
        let ops: [fn(&Tensor) -> Result<Tensor>; 2] = [global_average_pool, mean_pixel];
        for op in ops {
            check_gradients(
                &[&[3, 2, 5, 2]],
                |t| op(&t[0]),
                |v| {
                    let mean =
                        |i: usize| (0..10).map(|p| v[0][i / 2 * 20 + p * 2 + i % 2]).sum::<f64>();
                    (0..6).map(|i| mean(i) / 10.0).collect()
                },
                1e-5,
            );
        }
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
    fn bf16_is_pooled_as_the_same_numbers_in_f32() -> Result<()> {
        let window = Window { stride: 2, padding: 1 };
        let x = Tensor::from_vec(values("bf16", 0, 2 * 9 * 8 * 5), (2, 9, 8, 5), &Device::Cpu)?;
        let x = x.to_dtype(DType::BF16)?;
        let r = Tensor::from_vec(values("r", 0, 2 * 5 * 4 * 5), (2, 5, 4, 5), &Device::Cpu)?;
        let r = r.to_dtype(DType::BF16)?;
        let pooled = |dtype| {
            let x = Var::from_tensor(&x.to_dtype(dtype)?)?;
            let y = max_pool2d(&x, 3, window)?;
            assert_eq!(y.dtype(), dtype);
            let gradients = (&y * r.to_dtype(dtype)?)?.sum_all()?.backward()?;
            let flat = |t: &Tensor| t.to_dtype(DType::BF16)?.flatten_all()?.to_vec1::<bf16>();
            Ok::<_, candle_core::Error>([flat(&y)?, flat(gradients.get(&x).unwrap())?])
        };
        assert_eq!(pooled(DType::BF16)?, pooled(DType::F32)?);
        Ok(())
    }

    #[test]
    fn too_much_padding_is_refused() {
        let x = Tensor::zeros((1, 4, 4, 1), candle_core::DType::F32, &Device::Cpu).unwrap();
        assert_refused(
            max_pool2d(&x, 2, Window { stride: 2, padding: 2 }),
            "pads by 2, its window is 2 wide",
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn any_shape_is_pooled_alike_on_any_number_of_threads(
            n in 1usize..4, h in 1usize..12, w in 1usize..12, c in 1usize..20,
            kernel in 1usize..5, stride in 1usize..4, padded: bool
        ) {
            let window = Window { stride, padding: if padded { kernel / 2 } else { 0 } };
            prop_assume!(h + 2 * window.padding >= kernel && w + 2 * window.padding >= kernel);
            let shape = [n, h, w, c];
            let x = values("any", 0, n * h * w * c);
            let exact: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
            let x = Var::from_vec(x, &shape[..], &Device::Cpu).unwrap();
            let run = |threads: usize| {
                on_threads(threads, || {
                    let largest = max_pool2d(&x, kernel, window).unwrap();
                    let mean = average_pool2d(&x, kernel, window).unwrap();
                    let sum = (&largest + &mean).unwrap().sqr().unwrap().sum_all().unwrap();
                    let grads = sum.backward().unwrap();
                    [flat(&largest), flat(&mean), flat(grads.get(&x).unwrap())]
                })
            };
            let [largest, mean, gradient] = run(1);
            prop_assert!([&largest, &mean, &gradient] == run(2).each_ref());
            prop_assert!([&largest, &mean, &gradient] == run(3).each_ref());
            let exact_largest = slow_max(&exact, shape, kernel, window);
            prop_assert!(largest.iter().zip(exact_largest).all(|(y, e)| f64::from(*y) == e));
            let error = mean.iter().zip(slow_average(&exact, shape, kernel, window))
                .map(|(y, exact)| (f64::from(*y) - exact).abs())
                .fold(0.0, f64::max);
            println!("average pool {kernel} of {shape:?}: error against f64 {error:.1e}");
            prop_assert!(error < 1e-6);
        }
    }
}
