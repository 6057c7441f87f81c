//! Images of other sizes, each row and column a weighted sum of the rows and columns before:
//! adaptive pooling, interpolation, and pooling by rectangles.

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
use super::conv::Rounding;
use super::operation::{Gradients, Input, Operation};
use super::scratch::zeros;
use super::storage::{read, tensor};

/// Lines (rows or columns) that are weighted sums of other lines.
#[derive(Clone, Debug, PartialEq)]
pub struct ResampleWeights {
    /// Lines that there are.
    from: usize,
    /// Lines, and their weights, that each line of the result is made of.
    parts: Vec<Vec<(usize, f32)>>,
}

/// Windows over lines, whose means are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Means {
    /// Lines of a window.
    pub kernel: usize,
    /// Lines from window to window.
    pub stride: usize,
    /// Zeros before and behind.
    pub padding: usize,
    /// Treatment of a rest that the stride leaves.
    pub rounding: Rounding,
    /// True if padding counts as zeros.
    pub count_include_pad: bool,
}

impl ResampleWeights {
    fn new(from: usize, to: usize, parts: impl Fn(usize) -> Vec<(usize, f32)>) -> Result<Self> {
        if from == 0 || to == 0 {
            bail!("{to} lines made of {from}");
        }
        Ok(Self { from, parts: (0..to).map(parts).collect() })
    }

    /// Means over parts of nearly equal size, which may overlap by a line:
    /// `torch.nn.AdaptiveAvgPool2d`.
    pub fn adaptive(from: usize, to: usize) -> Result<Self> {
        Self::new(from, to, |i| {
            let start = i * from / to;
            let end = ((i + 1) * from).div_ceil(to);
            let share = 1.0 / (end - start) as f32;
            (start..end).map(|line| (line, share)).collect()
        })
    }

    /// Means of windows: `torch.nn.AvgPool1d`.
    pub fn means(from: usize, windows: Means) -> Result<Self> {
        let Means { kernel, stride, padding, rounding, count_include_pad } = windows;
        let to = rounding.windows(from, kernel, stride, padding)?;
        Self::new(from, to, |i| {
            // Places beyond the padding never count.
            let end = (i * stride + kernel).min(from + 2 * padding);
            let places = (i * stride..end).map(|at| at.wrapping_sub(padding));
            let seen: Vec<usize> = places.clone().filter(|&line| line < from).collect();
            let count = if count_include_pad { places.len() } else { seen.len() };
            seen.into_iter().map(|line| (line, 1.0 / count as f32)).collect()
        })
    }

    /// Copies of the nearest line: `mode="nearest"` of `torch.nn.Upsample`.
    pub fn nearest(from: usize, to: usize) -> Result<Self> {
        Self::new(from, to, |i| vec![(i * from / to, 1.0)])
    }

    /// Between the two nearest lines, ends not aligned: `mode="bilinear"` of `torch.nn.Upsample`.
    pub fn linear(from: usize, to: usize) -> Result<Self> {
        Self::new(from, to, |i| {
            let place = ((i as f64 + 0.5) * from as f64 / to as f64 - 0.5).max(0.0);
            let line = (place as usize).min(from - 1);
            let share = place.fract() as f32;
            if line + 1 < from && share > 0.0 {
                vec![(line, 1.0 - share), (line + 1, share)]
            } else {
                vec![(line, 1.0)]
            }
        })
    }

    /// As a matrix (to, from).
    pub fn dense(&self, device: &candle_core::Device) -> Result<Tensor> {
        let from = self.from;
        let to = self.parts.len();
        let mut matrix = vec![0.0; from * to];
        for (row, parts) in matrix.chunks_exact_mut(from).zip(&self.parts) {
            for (line, share) in parts {
                row[*line] += share;
            }
        }
        Tensor::from_vec(matrix, (to, from), device)
    }
}

/// An image whose rows and columns are made of those of x: (n, h, w, c) -> (n, rows, columns, c),
/// f32.
pub fn resample(x: &Tensor, rows: ResampleWeights, columns: ResampleWeights) -> Result<Tensor> {
    let (_, h, w, _) = x.dims4()?;
    if (rows.from, columns.from) != (h, w) {
        bail!("lines of {} x {} for an image of {h} x {w}", rows.from, columns.from);
    }
    chain::apply([x], Resample { rows, columns })
}

pub(super) struct Resample {
    rows: ResampleWeights,
    columns: ResampleWeights,
}

impl Resample {
    /// Calls `visit(place in the row that is made, place in the image, weight)` for each pixel that
    /// row `row` is made of.
    #[inline(always)]
    fn for_each_pixel(&self, row: usize, mut visit: impl FnMut(usize, usize, f32)) {
        for (column, across) in self.columns.parts.iter().enumerate() {
            for (y, down) in &self.rows.parts[row] {
                for (x, share) in across {
                    visit(column, y * self.columns.from + x, down * share);
                }
            }
        }
    }

    /// Height and width of the output.
    fn output_size(&self) -> [usize; 2] {
        [self.rows.parts.len(), self.columns.parts.len()]
    }

    /// By products of matrices: (n, h, w, c) -> (n, rows, columns, c); `back` is the way of the
    /// gradient.
    #[cfg(any(test, feature = "cuda"))]
    pub(super) fn composed(&self, x: &Tensor, back: bool) -> Result<Tensor> {
        let x = x.detach();
        let (n, h, w, c) = x.dims4()?;
        let mut down = self.rows.dense(x.device())?;
        let mut across = self.columns.dense(x.device())?;
        if back {
            (down, across) = (down.t()?.contiguous()?, across.t()?.contiguous()?);
        }
        let rows = down.dim(0)?;
        let columns = across.dim(0)?;
        let x = x.reshape((n, h, w * c))?;
        let x = down.broadcast_matmul(&x)?.reshape((n * rows, w, c))?;
        across.broadcast_matmul(&x)?.reshape((n, rows, columns, c))
    }
}

impl Operation for Resample {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "resample-nhwc";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let (n, h, w, c) = x.shape.dims4()?;
        let [rows, columns] = self.output_size();
        let mut y = zeros(n * rows * columns * c);
        y.par_chunks_mut((columns * c).max(1)).enumerate().for_each(|(index, y)| {
            let image = &x.values[index / rows * h * w * c..][..h * w * c];
            self.for_each_pixel(index % rows, |to, from, share| {
                let pixel = &image[from * c..][..c];
                for (y, x) in y[to * c..][..c].iter_mut().zip(pixel) {
                    *y += share * x;
                }
            });
        });
        Ok((y, Shape::from((n, rows, columns, c))))
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let (_, h, w, c) = x.dims4()?;
        let [rows, columns] = self.output_size();
        let mut dx = zeros(x.elem_count());
        read([&dy], |[dy]| {
            let images = dx.par_chunks_mut((h * w * c).max(1));
            images.zip(dy.par_chunks((rows * columns * c).max(1))).for_each(|(dx, dy)| {
                for (row, dy) in dy.chunks_exact(columns * c).enumerate() {
                    self.for_each_pixel(row, |to, from, share| {
                        let gradient = &dy[to * c..][..c];
                        for (dx, g) in dx[from * c..][..c].iter_mut().zip(gradient) {
                            *dx += share * g;
                        }
                    });
                }
            });
            Ok(())
        })?;
        Ok([Some(tensor(dx, x.shape())?)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::super::testing::{check_gradients, values};
    use super::*;

    fn means(from: usize, kernel: usize, stride: usize, padding: usize) -> ResampleWeights {
        let (rounding, count_include_pad) = (Rounding::Down, true);
        let windows = Means { kernel, stride, padding, rounding, count_include_pad };
        ResampleWeights::means(from, windows).unwrap()
    }

    /// Lines of each kind: rows from 5 and columns from 4.
    fn all() -> Vec<[ResampleWeights; 2]> {
        vec![
            [ResampleWeights::adaptive(5, 3).unwrap(), ResampleWeights::adaptive(4, 7).unwrap()],
            [means(5, 3, 2, 1), means(4, 1, 1, 0)],
            [ResampleWeights::nearest(5, 10).unwrap(), ResampleWeights::nearest(4, 3).unwrap()],
            [ResampleWeights::linear(5, 11).unwrap(), ResampleWeights::linear(4, 2).unwrap()],
        ]
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for [rows, columns] in all() {
            let slow = |v: &[Vec<f64>]| -> Vec<f64> {
                let (oh, ow) = (rows.parts.len(), columns.parts.len());
                let mut y = vec![0.0; 2 * oh * ow * 3];
                for (i, y) in y.iter_mut().enumerate() {
                    let (c, ox, oy, image) = (i % 3, i / 3 % ow, i / 3 / ow % oh, i / 3 / ow / oh);
                    for (iy, down) in &rows.parts[oy] {
                        for (ix, share) in &columns.parts[ox] {
                            let x = v[0][((image * 5 + iy) * 4 + ix) * 3 + c];
                            *y += x * f64::from(*down) * f64::from(*share);
                        }
                    }
                }
                y
            };
            let op = |t: &[Tensor]| resample(&t[0], rows.clone(), columns.clone());
            check_gradients(&[&[2, 5, 4, 3]], op, slow, 1e-5);
        }
    }

    #[test]
    fn products_of_matrices_give_the_same() -> Result<()> {
        for [rows, columns] in all() {
            let x = Var::from_vec(values("x", 0, 120), (2, 5, 4, 3), &Device::Cpu)?;
            let y = resample(&x, rows.clone(), columns.clone())?;
            let gradients = y.sqr()?.sum_all()?.backward()?;
            let op = Resample { rows, columns };
            let composed = op.composed(&x, false)?;
            let back = op.composed(&(&composed * 2.0)?, true)?;
            let near = |a: &Tensor, b: &Tensor| -> Result<bool> {
                Ok((a - b)?.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>()? < 1e-5)
            };
            assert!(near(&y, &composed)? && near(gradients.get(&x).unwrap(), &back)?);
        }
        Ok(())
    }

    /// `AdaptiveAvgPool1d(4)`, `AvgPool1d(3, 2, 1)`, and `interpolate` of PyTorch 2.15 over 0, 1,
    /// 4, 9, 16, 25.
    #[test]
    fn known_values_are_those_of_pytorch() -> Result<()> {
        let x = Tensor::new(&[0f32, 1.0, 4.0, 9.0, 16.0, 25.0], &Device::Cpu)?;
        let x = x.reshape((1, 6, 1, 1))?;
        let check = |rows, expected: &[f32]| -> Result<()> {
            let y = resample(&x, rows, ResampleWeights::nearest(1, 1)?)?
                .flatten_all()?
                .to_vec1::<f32>()?;
            let near = y.iter().zip(expected).all(|(y, expected)| (y - expected).abs() < 1e-5);
            assert!(near && y.len() == expected.len(), "{y:?} instead of {expected:?}");
            Ok(())
        };
        check(ResampleWeights::adaptive(6, 4)?, &[0.5, 2.5, 12.5, 20.5])?;
        check(means(6, 3, 2, 1), &[1.0 / 3.0, 14.0 / 3.0, 50.0 / 3.0])?;
        check(ResampleWeights::nearest(6, 4)?, &[0.0, 1.0, 9.0, 16.0])?;
        check(ResampleWeights::linear(6, 4)?, &[0.25, 3.25, 10.75, 22.75])
    }
}
