//! Sums of two tensors, on all threads.

#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
#[cfg(feature = "cuda")]
use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor, bail};

use super::chain::apply2;
use super::lanes::{build, change_blocks, vectorised};
use super::storage::{output, overwrite, read, slice, tensor};

/// a + b, of one shape, f32.
///
/// # Errors
///
/// Shapes that differ.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.dims() != b.dims() {
        bail!("a sum of {:?} and {:?}", a.dims(), b.dims());
    }
    apply2(&a.contiguous()?, &b.contiguous()?, Add)
}

struct Add;

impl CustomOp2 for Add {
    fn name(&self) -> &'static str {
        "sum"
    }

    fn cpu_fwd(
        &self,
        a: &CpuStorage,
        a_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (a, b) = (slice(a, a_layout)?, slice(b, b_layout)?);
        let sum = build(a.len(), |start, sum| {
            sum.copy_from_slice(&a[start..][..sum.len()]);
            add_block(sum, &b[start..]);
        });
        Ok(output(sum, a_layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        a: &CudaStorage,
        a_layout: &Layout,
        b: &CudaStorage,
        b_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let sum = a.binary_impl::<candle_core::op::Add>(b, a_layout, b_layout)?;
        Ok((sum, a_layout.shape().clone()))
    }

    fn bwd(
        &self,
        _a: &Tensor,
        _b: &Tensor,
        _sum: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok((Some(dy.clone()), Some(dy.clone())))
    }
}

/// sum + gradient, in the memory of `sum` where that is the CPU's: nothing else may hold it.
pub(super) fn add_to(sum: Tensor, gradient: &Tensor) -> Result<Tensor> {
    if !is_plain(&sum) {
        return sum + gradient;
    }
    read([gradient], |[gradient]| {
        overwrite(&sum, |sum| change_blocks(sum, |start, sum| add_block(sum, &gradient[start..])))
    })?;
    Ok(sum)
}

/// A tensor of its own memory.
pub(super) fn copied(x: &Tensor) -> Result<Tensor> {
    if !is_plain(x) {
        return x.copy();
    }
    let copy = read([x], |[x]| {
        Ok(build(x.len(), |start, copy| copy.copy_from_slice(&x[start..][..copy.len()])))
    })?;
    tensor(copy, x.shape())
}

/// Whether a tensor is f32, contiguous and in the CPU's memory.
fn is_plain(x: &Tensor) -> bool {
    x.device().is_cpu() && x.is_contiguous() && x.dtype() == DType::F32
}

/// sum += values, as far as the sum goes.
fn add_block(sum: &mut [f32], values: &[f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (sum, value) in sum.iter_mut().zip(values) {
                *sum += value;
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::super::testing::check_gradients;
    use super::*;

    #[test]
    fn sums_and_gradients_equal_the_slow_ones() {
        for n in [1, 7, 5000] {
            check_gradients(
                &[&[n], &[n]],
                |t| add(&t[0], &t[1]),
                |v| v[0].iter().zip(&v[1]).map(|(a, b)| a + b).collect(),
                1e-6,
            );
        }
    }
}
