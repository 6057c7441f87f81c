//! 2-d convolution, NHWC: forward, gradient of the input, gradient of the weight.
//!
//! Blocks of output pixels are gathered into a matrix and multiplied by the weight. The weight gradient
//! adds a fixed number of partial sums in a fixed order, so that the number of threads changes no bit.

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::bias::column_sums;
use super::gemm::{Matrix, Sums, Write, multiply};
use super::im2col::Geometry;
use super::precision::{round, rounded};
use super::storage::{output, read, slice, tensor};
use crate::plan::Precision;

/// Output pixels per matrix product.
const PIXELS: usize = 256;
/// Elements of all partial weight gradients together, about 64 MiB.
const PARTIAL_SUMS: usize = 1 << 24;

/// How a window slides over an image, the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Input pixels from one output pixel to the next.
    pub stride: usize,
    /// Rows and columns added on each side.
    pub padding: usize,
}

/// Cross-correlation as `torch.nn.functional.conv2d`, with activations in NHWC.
///
/// x (n, h, w, ci), weight (co, ci, kh, kw), bias (co) -> (n, oh, ow, co), f32. Under a half precision,
/// operands, result and gradients are rounded to it.
///
/// # Errors
///
/// The channels differ, or the kernel is larger than the padded image.
pub fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    window: Window,
    precision: Precision,
) -> Result<Tensor> {
    let geometry = Geometry::new(x.dims4()?, weight.dims4()?, window.stride, window.padding)?;
    let op = Conv { geometry, precision };
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    match bias {
        None => x.apply_op2(&weight, op),
        Some(bias) if bias.dims() == [geometry.co] => x.apply_op3(&weight, &bias.contiguous()?, op),
        Some(bias) => bail!("a bias of shape {:?} for {} channels", bias.dims(), geometry.co),
    }
}

struct Conv {
    geometry: Geometry,
    precision: Precision,
}

impl Conv {
    fn forward(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> (CpuStorage, Shape) {
        let Geometry { n, oh, ow, co, .. } = self.geometry;
        let (x, weight) = (rounded(x, self.precision), rounded(weight, self.precision));
        let mut y = forward(&self.geometry, &x, &to_hwio(&self.geometry, &weight));
        if let Some(bias) = bias {
            let bias = rounded(bias, self.precision);
            y.par_chunks_mut(PIXELS * co).for_each(|block| {
                for pixel in block.chunks_exact_mut(co) {
                    pixel.iter_mut().zip(&*bias).for_each(|(y, bias)| *y += bias);
                }
            });
        }
        round(&mut y, self.precision);
        output(y, (n, oh, ow, co))
    }

    fn backward(&self, x: &Tensor, weight: &Tensor, dy: &Tensor) -> Result<Gradients> {
        let geometry = &self.geometry;
        read([x, weight, dy], |[x_values, weight_values, dy]| {
            let dy = rounded(dy, self.precision);
            let dx = if x.track_op() {
                let weight_values = rounded(weight_values, self.precision);
                let dx = backward_data(geometry, &dy, &to_ohwi(geometry, &weight_values));
                Some(self.gradient(dx, x.shape())?)
            } else {
                None
            };
            let dw = if weight.track_op() {
                let dw = backward_weight(geometry, &rounded(x_values, self.precision), &dy);
                Some(self.gradient(dw, weight.shape())?)
            } else {
                None
            };
            Ok(Gradients { dx, dw })
        })
    }

    fn gradient(&self, mut values: Vec<f32>, shape: &Shape) -> Result<Tensor> {
        round(&mut values, self.precision);
        tensor(values, shape)
    }
}

struct Gradients {
    dx: Option<Tensor>,
    dw: Option<Tensor>,
}

impl CustomOp2 for Conv {
    fn name(&self) -> &'static str {
        "conv2d-nhwc"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok(self.forward(slice(x, x_layout)?, slice(weight, weight_layout)?, None))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradients = self.backward(x, weight, dy)?;
        Ok((gradients.dx, gradients.dw))
    }
}

impl CustomOp3 for Conv {
    fn name(&self) -> &'static str {
        "conv2d-nhwc-bias"
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
        Ok(self.forward(slice(x, x_layout)?, slice(weight, weight_layout)?, Some(bias)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradients = self.backward(x, weight, dy)?;
        let db = if bias.track_op() {
            let sums =
                |[dy]: [&[f32]; 1]| Ok(column_sums(&rounded(dy, self.precision), self.geometry.co));
            Some(self.gradient(read([dy], sums)?, bias.shape())?)
        } else {
            None
        };
        Ok((gradients.dx, gradients.dw, db))
    }
}

/// y (pixels, co) = gathered x (pixels, columns) weight (columns, co), block by block.
fn forward(g: &Geometry, x: &[f32], weight: &[f32]) -> Vec<f32> {
    let weight = Matrix::new(weight, g.columns(), g.co);
    let mut y = vec![0.0; g.pixels() * g.co];
    y.par_chunks_mut(PIXELS * g.co).enumerate().for_each_init(Vec::new, |scratch, (block, y)| {
        let first = block * PIXELS;
        let pixels = first..first + y.len() / g.co;
        let x = gathered(g, x, pixels, scratch);
        multiply(y, x, weight, Write::Replace, Sums::Short);
    });
    y
}

/// Each block's dy (pixels, co) weight (co, columns) is added to the pixels that the block had read.
fn backward_data(g: &Geometry, dy: &[f32], weight: &[f32]) -> Vec<f32> {
    let weight = Matrix::new(weight, g.co, g.columns());
    let per_image = g.oh * g.ow;
    // Images do not share input values; small ones are taken together to fill a block.
    let images = PIXELS.div_ceil(per_image);
    let mut dx = vec![0.0; g.n * g.h * g.w * g.ci];
    let task = |scratch: &mut Vec<f32>, (group, dx): (usize, &mut [f32])| {
        let first = group * images * per_image;
        let last = (first + images * per_image).min(g.pixels());
        for start in (first..last).step_by(PIXELS) {
            let pixels = start..(start + PIXELS).min(last);
            let dy = &dy[pixels.start * g.co..pixels.end * g.co];
            let dy = Matrix::new(dy, pixels.len(), g.co);
            if g.is_pointwise() {
                let dx = &mut dx[(pixels.start - first) * g.ci..(pixels.end - first) * g.ci];
                multiply(dx, dy, weight, Write::Replace, Sums::Long);
            } else {
                scratch.resize(pixels.len() * g.columns(), 0.0);
                multiply(scratch, dy, weight, Write::Replace, Sums::Long);
                g.scatter(scratch, pixels, dx, group * images);
            }
        }
    };
    dx.par_chunks_mut(images * g.h * g.w * g.ci).enumerate().for_each_init(Vec::new, task);
    dx
}

/// dw (columns, co) = gathered x^T (columns, pixels) dy (pixels, co), returned as (co, ci, kh, kw).
fn backward_weight(g: &Geometry, x: &[f32], dy: &[f32]) -> Vec<f32> {
    let len = g.co * g.columns();
    let blocks = g.pixels().div_ceil(PIXELS);
    let parts = (PARTIAL_SUMS / len.max(1)).clamp(4, 32).min(blocks);
    let part_sum = |part: usize| {
        let (mut sum, mut scratch) = (vec![0.0; len], Vec::new());
        for block in blocks * part / parts..blocks * (part + 1) / parts {
            let pixels = block * PIXELS..((block + 1) * PIXELS).min(g.pixels());
            let dy = &dy[pixels.start * g.co..pixels.end * g.co];
            let dy = Matrix::new(dy, pixels.len(), g.co);
            let x = gathered(g, x, pixels, &mut scratch).transposed();
            multiply(&mut sum, x, dy, Write::Add, Sums::Long);
        }
        sum
    };
    let sums: Vec<Vec<f32>> = (0..parts).into_par_iter().map(part_sum).collect();
    let mut hwio = vec![0.0; len];
    hwio.par_chunks_mut(PIXELS * g.co).enumerate().for_each(|(block, total)| {
        for sum in &sums {
            let part = &sum[block * PIXELS * g.co..][..total.len()];
            total.iter_mut().zip(part).for_each(|(total, part)| *total += part);
        }
    });
    from_hwio(g, &hwio)
}

/// The block's matrix (pixels, columns): the input itself for a 1x1 convolution, else gathered into
/// `scratch`.
fn gathered<'a>(
    g: &Geometry,
    x: &'a [f32],
    pixels: std::ops::Range<usize>,
    scratch: &'a mut Vec<f32>,
) -> Matrix<'a> {
    let (rows, columns) = (pixels.len(), g.columns());
    if g.is_pointwise() {
        return Matrix::new(&x[pixels.start * columns..pixels.end * columns], rows, columns);
    }
    scratch.resize(rows * columns, 0.0);
    g.gather(x, pixels, scratch);
    Matrix::new(scratch, rows, columns)
}

/// (co, ci, kh, kw) -> (co, kh, kw, ci): a row per output channel, in the order of the gathered columns.
fn to_ohwi(g: &Geometry, weight: &[f32]) -> Vec<f32> {
    let (columns, taps) = (g.columns(), g.kh * g.kw);
    let mut ohwi = vec![0.0; weight.len()];
    let filters = ohwi.par_chunks_mut(columns).zip(weight.par_chunks(columns));
    filters.for_each(|(filter, weight)| {
        for (c, weight) in weight.chunks_exact(taps).enumerate() {
            for (tap, &value) in weight.iter().enumerate() {
                filter[tap * g.ci + c] = value;
            }
        }
    });
    ohwi
}

/// (co, ci, kh, kw) -> (kh, kw, ci, co): a row per gathered column.
fn to_hwio(g: &Geometry, weight: &[f32]) -> Vec<f32> {
    let (columns, taps) = (g.columns(), g.kh * g.kw);
    let mut hwio = vec![0.0; weight.len()];
    // A tap's rows at a time: reads stride by filter, writes are contiguous.
    hwio.par_chunks_mut(g.ci * g.co).enumerate().for_each(|(tap, rows)| {
        for (c, row) in rows.chunks_exact_mut(g.co).enumerate() {
            for (out, value) in row.iter_mut().enumerate() {
                *value = weight[out * columns + c * taps + tap];
            }
        }
    });
    hwio
}

/// (kh, kw, ci, co) -> (co, ci, kh, kw).
fn from_hwio(g: &Geometry, hwio: &[f32]) -> Vec<f32> {
    let (columns, taps) = (g.columns(), g.kh * g.kw);
    let mut weight = vec![0.0; hwio.len()];
    weight.par_chunks_mut(columns).enumerate().for_each(|(out, filter)| {
        for (c, filter) in filter.chunks_exact_mut(taps).enumerate() {
            for (tap, value) in filter.iter_mut().enumerate() {
                *value = hwio[(tap * g.ci + c) * g.co + out];
            }
        }
    });
    weight
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::super::testing::{check_gradients, values};
    use super::*;

    fn slow(x: &[f64], w: &[f64], g: &Geometry) -> Vec<f64> {
        let mut y = vec![0.0; g.pixels() * g.co];
        for (i, y) in y.iter_mut().enumerate() {
            let (o, pixel) = (i % g.co, i / g.co);
            let (image, row, col) = (pixel / (g.oh * g.ow), pixel / g.ow % g.oh, pixel % g.ow);
            for (ky, kx) in (0..g.kh).flat_map(|ky| (0..g.kw).map(move |kx| (ky, kx))) {
                let (iy, ix) = (row * g.stride + ky, col * g.stride + kx);
                if iy < g.padding
                    || ix < g.padding
                    || iy >= g.h + g.padding
                    || ix >= g.w + g.padding
                {
                    continue;
                }
                let at = ((image * g.h + iy - g.padding) * g.w + ix - g.padding) * g.ci;
                for c in 0..g.ci {
                    *y += x[at + c] * w[((o * g.ci + c) * g.kh + ky) * g.kw + kx];
                }
            }
        }
        y
    }

    fn check(x: [usize; 4], co: usize, kernel: (usize, usize), window: Window) {
        let weight = [co, x[3], kernel.0, kernel.1];
        let g = Geometry::new(
            (x[0], x[1], x[2], x[3]),
            (co, x[3], kernel.0, kernel.1),
            window.stride,
            window.padding,
        )
        .unwrap();
        check_gradients(
            &[&x, &weight],
            |t| conv2d(&t[0], &t[1], None, window, Precision::Fp32),
            |v| slow(&v[0], &v[1], &g),
            1e-4,
        );
        check_gradients(
            &[&x, &weight, &[co]],
            |t| conv2d(&t[0], &t[1], Some(&t[2]), window, Precision::Fp32),
            |v| slow(&v[0], &v[1], &g).iter().enumerate().map(|(i, y)| y + v[2][i % co]).collect(),
            1e-4,
        );
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones_over_odd_shapes() {
        let window = |stride, padding| Window { stride, padding };
        check([1, 1, 1, 1], 1, (1, 1), window(1, 0));
        check([2, 5, 4, 3], 2, (3, 3), window(1, 1));
        check([2, 7, 5, 2], 3, (3, 3), window(2, 1));
        check([3, 6, 6, 2], 5, (1, 1), window(1, 0));
        check([3, 5, 7, 2], 5, (1, 1), window(2, 0));
        check([1, 9, 8, 1], 2, (7, 7), window(2, 3));
        check([2, 3, 2, 2], 1, (2, 3), window(3, 2));
        check([1, 2, 2, 1], 1, (5, 5), window(1, 3));
        check([1, 1, 3, 2], 2, (1, 3), window(1, 0));
    }

    #[test]
    fn blocks_that_span_images_and_blocks_inside_an_image_agree_with_the_slow_form() {
        check([3, 17, 13, 1], 2, (3, 3), Window { stride: 1, padding: 1 });
        check([37, 4, 4, 1], 2, (3, 3), Window { stride: 1, padding: 1 });
        check([1, 23, 29, 2], 1, (1, 1), Window { stride: 1, padding: 0 });
    }

    fn bits(threads: usize) -> Vec<u32> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let x = tensor(values("x", 0, 9 * 13 * 11 * 6), (9, 13, 11, 6)).unwrap();
            let w = tensor(values("w", 0, 10 * 6 * 9), (10, 6, 3, 3)).unwrap();
            let (x, w) = (Var::from_tensor(&x).unwrap(), Var::from_tensor(&w).unwrap());
            let window = Window { stride: 1, padding: 1 };
            let y = conv2d(&x, &w, None, window, Precision::Fp32).unwrap();
            let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            [&y, grads.get(&x).unwrap(), grads.get(&w).unwrap()]
                .iter()
                .flat_map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap())
                .map(f32::to_bits)
                .collect()
        })
    }

    #[test]
    fn bits_do_not_depend_on_the_number_of_threads() {
        let one = bits(1);
        assert!(one == bits(2) && one == bits(3));
    }

    #[test]
    fn half_precision_rounds_operands_results_and_gradients() -> Result<()> {
        let x =
            Var::from_vec(vec![1.0f32 + 2f32.powi(-11)], (1, 1, 1, 1), &candle_core::Device::Cpu)?;
        let w = Var::from_vec(vec![300.0f32], (1, 1, 1, 1), &candle_core::Device::Cpu)?;
        let y = conv2d(&x, &w, None, Window { stride: 1, padding: 0 }, Precision::Fp16)?;
        assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [300.0]);
        let grads = (y * 1e4)?.sum_all()?.backward()?;
        let values = |v: &Var| grads.get(v).unwrap().flatten_all()?.to_vec1::<f32>();
        assert_eq!(values(&x)?, [f32::INFINITY]);
        assert_eq!(values(&w)?, [10000.0]);
        Ok(())
    }

    #[test]
    fn a_kernel_larger_than_the_padded_image_is_refused() {
        let shape = |dims: [usize; 4]| {
            Tensor::zeros(&dims, candle_core::DType::F32, &candle_core::Device::Cpu).unwrap()
        };
        let window = Window { stride: 1, padding: 0 };
        assert!(
            conv2d(&shape([1, 2, 2, 1]), &shape([1, 1, 3, 3]), None, window, Precision::Fp32)
                .is_err()
        );
        assert!(
            conv2d(&shape([1, 3, 3, 2]), &shape([1, 1, 3, 3]), None, window, Precision::Fp32)
                .is_err()
        );
    }
}
