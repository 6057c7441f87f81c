//! NCHW <-> NHWC, at the border between data and convolutions.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use super::chain;
#[cfg(feature = "cuda")]
use super::cuda;
use super::kernel::transpose_best;
use super::scratch::filled;
use super::storage::{output, read, slice, tensor};

/// (n, c, h, w) -> (n, h, w, c), f32.
///
/// # Errors
///
/// Not four dimensions, or not f32 on the CPU.
pub fn nchw_to_nhwc(x: &Tensor) -> Result<Tensor> {
    let (n, c, h, w) = x.dims4()?;
    let op = Transpose { rows: c, cols: h * w, shape: [n, h, w, c] };
    chain::apply1(&x.contiguous()?, op)
}

/// (n, h, w, c) -> (n, c, h, w), f32.
///
/// # Errors
///
/// Not four dimensions, or not f32 on the CPU.
pub fn nhwc_to_nchw(x: &Tensor) -> Result<Tensor> {
    let (n, h, w, c) = x.dims4()?;
    let op = Transpose { rows: h * w, cols: c, shape: [n, c, h, w] };
    chain::apply1(&x.contiguous()?, op)
}

/// Transposes each image's (rows, cols) matrix.
struct Transpose {
    rows: usize,
    cols: usize,
    shape: [usize; 4],
}

impl CustomOp1 for Transpose {
    fn name(&self) -> &'static str {
        "image-layout"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok(output(transposed(slice(x, layout)?, self.rows, self.cols), &self.shape))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (gpu, at) = (cuda::Gpu::of(x), cuda::of_storage(x, layout)?);
        let y = cuda::transpose(&gpu, at, self.shape[0], (self.rows, self.cols))?;
        Ok((y, Shape::from(&self.shape)))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, dy: &Tensor) -> Result<Option<Tensor>> {
        #[cfg(feature = "cuda")]
        if dy.device().is_cuda() {
            let dy = dy.contiguous()?;
            let (gpu, at) = (cuda::Gpu::of_tensor(&dy)?, cuda::of_tensor(&dy)?);
            let dx = cuda::transpose(&gpu, at, self.shape[0], (self.cols, self.rows))?;
            return Ok(Some(cuda::wrap(dx, x.shape())));
        }
        read([dy], |[dy]| Ok(Some(tensor(transposed(dy, self.cols, self.rows), x.shape())?)))
    }
}

/// The transposed of each (rows, cols) matrix of x, matrix by matrix in parallel.
pub(super) fn transposed(x: &[f32], rows: usize, cols: usize) -> Vec<f32> {
    filled(x.len(), rows * cols, |start, y| {
        transpose_best((&x[start..], cols), (y, rows), (cols, rows));
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
