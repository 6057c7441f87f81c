//! NCHW <-> NHWC, at the border between data and convolutions.

use candle_core::{Result, Shape, Tensor};

use super::chain;
use super::kernel::{Strided, transpose_best};
use super::operation::{Gradients, Input, Operation};
use super::scratch::filled;
use super::storage::{read, tensor};

/// (n, c, h, w) -> (n, h, w, c), f32.
///
/// # Errors
///
/// Not four dimensions, or not f32 on the CPU.
pub fn nchw_to_nhwc(x: &Tensor) -> Result<Tensor> {
    let (n, c, h, w) = x.dims4()?;
    let op = Transpose { rows: c, cols: h * w, shape: [n, h, w, c] };
    chain::apply([x], op)
}

/// (n, h, w, c) -> (n, c, h, w), f32.
///
/// # Errors
///
/// Not four dimensions, or not f32 on the CPU.
pub fn nhwc_to_nchw(x: &Tensor) -> Result<Tensor> {
    let (n, h, w, c) = x.dims4()?;
    let op = Transpose { rows: h * w, cols: c, shape: [n, c, h, w] };
    chain::apply([x], op)
}

/// Transposes each image's (rows, cols) matrix.
pub(super) struct Transpose {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) shape: [usize; 4],
}

impl Operation for Transpose {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "image-layout";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        Ok((transposed(x.values, self.rows, self.cols), Shape::from(&self.shape)))
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let dx = read([&dy], |[dy]| Ok(transposed(dy, self.cols, self.rows)))?;
        Ok([Some(tensor(dx, x.shape())?)])
    }
}

/// The transposed of each (rows, cols) matrix of x, matrix by matrix in parallel.
pub(super) fn transposed(x: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    filled(x.len(), rows * cols, |start, y| {
        let from = Strided { values: &x[start..], stride: cols };
        transpose_best(from, Strided { values: y, stride: rows }, (cols, rows));
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_gradients, values};
    use super::*;

    #[test]
    fn both_directions_equal_candles_permutation_and_have_a_gradient() -> Result<()> {
        for dims in [[1, 1, 1, 1], [2, 3, 5, 7], [3, 70, 3, 31]] {
            let x = tensor(values("x", 0, dims.iter().product()), &dims)?;
            let there = nchw_to_nhwc(&x)?;
            let expected = x.permute((0, 2, 3, 1))?;
            assert_eq!(there.dims(), expected.dims());
            let flat = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
            assert_eq!(flat(&there)?, flat(&expected)?);
            assert_eq!(flat(&nhwc_to_nchw(&there)?)?, flat(&x)?);
        }
        let at = |v: &[f64], c: usize, hw: usize| -> Vec<f64> {
            (0..v.len()).map(|i| v[i / (c * hw) * c * hw + i % c * hw + i / c % hw]).collect()
        };
        check_gradients(&[&[2, 3, 2, 2]], |t| nchw_to_nhwc(&t[0]), |v| at(&v[0], 3, 4), 1e-6);
        Ok(())
    }
}
