//! Orders of axes: NCHW <-> NHWC at the border between data and convolutions, and neighbours that
//! change places.

use candle_core::{Result, Shape, Tensor, bail};

use super::chain;
use super::kernel::{Strided, transpose_best};
use super::operation::{Gradients, Input, Operation};
use super::scratch::filled;
use super::simd::build_rows;
use super::storage::{read, tensor};

/// (n, c, h, w) -> (n, h, w, c), f32.
pub fn nchw_to_nhwc(x: &Tensor) -> Result<Tensor> {
    let (n, c, h, w) = x.dims4()?;
    let op = Transpose { rows: c, cols: h * w, inner: 1, shape: (n, h, w, c).into() };
    chain::apply([x], op)
}

/// (n, h, w, c) -> (n, c, h, w), f32.
pub fn nhwc_to_nchw(x: &Tensor) -> Result<Tensor> {
    let (n, h, w, c) = x.dims4()?;
    let op = Transpose { rows: h * w, cols: c, inner: 1, shape: (n, c, h, w).into() };
    chain::apply([x], op)
}

/// x with dimension `dim` and the next one in each other's place, contiguous, f32:
/// `x.transpose(dim, dim + 1).contiguous()`, on all threads.
pub fn transpose_adjacent(x: &Tensor, dim: usize) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    let &[rows, cols, ref inner @ ..] = &dims[dim.min(dims.len())..] else {
        bail!("dimension {dim} of {dims:?} has no next one")
    };
    let inner = inner.iter().product();
    dims.swap(dim, dim + 1);
    chain::apply([x], Transpose { rows, cols, inner, shape: dims.into() })
}

/// Transposes (rows, cols) matrices whose elements are `inner` values.
pub(super) struct Transpose {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) inner: usize,
    /// Shape of the result.
    pub(super) shape: Shape,
}

impl Transpose {
    /// Matrices of numbers have a kernel; other ones are moved by Candle's.
    #[cfg(feature = "cuda")]
    pub(super) fn composed(&self, x: &Tensor, [rows, cols]: [usize; 2]) -> Result<Tensor> {
        x.detach().reshape(((), rows, cols, self.inner))?.transpose(1, 2)?.contiguous()
    }

    fn values(&self, x: &[f32], [rows, cols]: [usize; 2]) -> Vec<f32> {
        let inner = self.inner;
        if inner == 1 {
            return transposed(x, rows, cols);
        }
        // A line of the result holds the same column of all rows.
        build_rows(x.len(), rows * inner, |start, lines| {
            for (i, line) in lines.chunks_exact_mut(rows * inner).enumerate() {
                let line_number = start / (rows * inner) + i;
                let matrix = line_number / cols;
                let col = line_number % cols;
                for (row, values) in line.chunks_exact_mut(inner).enumerate() {
                    let from = ((matrix * rows + row) * cols + col) * inner;
                    values.copy_from_slice(&x[from..][..inner]);
                }
            }
        })
    }
}

impl Operation for Transpose {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "transpose";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        Ok((self.values(x.values, [self.rows, self.cols]), self.shape.clone()))
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let dx = read([&dy], |[dy]| Ok(self.values(dy, [self.cols, self.rows])))?;
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
    use test_support::assert_refused;

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

    #[test]
    fn neighbours_change_places_as_candle_has_them_and_so_do_their_gradients() -> Result<()> {
        let flat = |t: &Tensor| t.flatten_all()?.to_vec1::<f32>();
        for dims in [&[3, 4][..], &[2, 3, 5], &[2, 3, 4, 5], &[1, 9, 17, 2, 3]] {
            let x = candle_core::Var::from_tensor(&tensor(
                values("x", 0, dims.iter().product()),
                dims,
            )?)?;
            let weight = tensor(values("dy", 0, x.elem_count()), dims)?;
            for dim in 0..dims.len() - 1 {
                let (ours, theirs) =
                    (transpose_adjacent(&x, dim)?, x.transpose(dim, dim + 1)?.contiguous()?);
                assert_eq!((ours.dims(), flat(&ours)?), (theirs.dims(), flat(&theirs)?));
                let weight = weight.reshape(ours.dims())?;
                let [ours, theirs] = [ours, theirs].map(|y| -> Result<Vec<f32>> {
                    let gradients = (y * &weight)?.sum_all()?.backward()?;
                    gradients.get(&x).map_or(Ok(vec![]), &flat)
                });
                assert_eq!(ours?, theirs?);
            }
            for dim in [dims.len() - 1, 9] {
                assert_refused(transpose_adjacent(&x, dim), "has no next one");
            }
        }
        Ok(())
    }
}
