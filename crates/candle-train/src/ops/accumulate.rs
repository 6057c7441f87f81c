//! Sums in place, and of many parts, on all threads: what gradients and weight gradients are added up
//! by.

use std::ops::Deref;

use candle_core::{DType, Result, Tensor};
use half::bf16;

use super::element::{Element, WideBuffer};
use super::saved::Saved;
use super::simd::{build, change_blocks, vectorised};
use super::storage::{overwrite, read_numbers};

/// The sum of `parts` of `n` values each, which are added in their order.
pub(super) fn sum_of_parts(parts: &[impl Deref<Target = [f32]> + Sync], n: usize) -> Vec<f32> {
    build(n, |start, sum| {
        for part in parts {
            add_block(sum, &part[start..]);
        }
    })
}

/// sum + gradient, of one type, in the memory of `sum` if it is contiguous: nothing else may hold
/// it.
pub(super) fn add_to(sum: Tensor, gradient: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if sum.device().is_cuda() && sum.is_contiguous() && sum.dtype() == gradient.dtype() {
        super::cuda::add_to(&sum, &gradient.contiguous()?)?;
        return Ok(sum);
    }
    if !is_plain(&sum) {
        return sum + gradient;
    }
    match sum.dtype() {
        DType::BF16 => add_in_place::<bf16>(&sum, gradient)?,
        _ => add_in_place::<f32>(&sum, gradient)?,
    }
    Ok(sum)
}

fn add_in_place<E: Element>(sum: &Tensor, gradient: &Tensor) -> Result<()> {
    read_numbers([gradient], |[gradient]| {
        overwrite(sum, |sum: &mut [E]| {
            change_blocks(sum, |start, sum| {
                let mut buffer = WideBuffer::default();
                let gradient = gradient.read(start..start + sum.len(), &mut buffer);
                E::change(sum, |sum| add_block(sum, gradient));
            });
        })
    })
}

/// A tensor of its own memory.
pub(super) fn copied(x: &Tensor) -> Result<Tensor> {
    if !is_plain(x) {
        return x.copy();
    }
    Ok(read_numbers([x], |[x]| Ok(Saved::same_as(x)))?.tensor(x.shape()))
}

/// True if a tensor is f32 or bf16, contiguous and in the CPU's memory.
fn is_plain(x: &Tensor) -> bool {
    let is_known = matches!(x.dtype(), DType::F32 | DType::BF16);
    x.device().is_cpu() && x.is_contiguous() && is_known
}

/// sum += values, as far as the sum goes.
pub(super) fn add_block(sum: &mut [f32], values: &[f32]) {
    vectorised(
        #[inline(always)]
        || {
            for (sum, value) in sum.iter_mut().zip(values) {
                *sum += value;
            }
        },
    );
}
