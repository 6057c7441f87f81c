//! Sums of two tensors, on all threads.

use std::ops::Deref;

use candle_core::{DType, Result, Shape, Tensor, bail};
use half::bf16;

use super::chain::apply;
use super::element::{Element, WideBuffer};
use super::operation::{Gradients, Input, Operation};
use super::saved::Saved;
use super::simd::{build, change_blocks, vectorised};
use super::storage::{overwrite, read_numbers};

/// a + b, of one shape, f32. Either may be in half precision; on a GPU so is the sum if both are of
/// one type.
pub fn add(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.dims() != b.dims() {
        bail!("a sum of {:?} and {:?}", a.dims(), b.dims());
    }
    apply([a, b], Add)
}

pub(super) struct Add;

impl Operation for Add {
    type Operands<T> = [T; 2];

    const NAME: &'static str = "sum";

    fn forward(&self, [a, b]: [Input<'_>; 2]) -> Result<(Vec<f32>, Shape)> {
        let sum = build(a.values.len(), |start, sum| {
            sum.copy_from_slice(&a.values[start..][..sum.len()]);
            add_block(sum, &b.values[start..]);
        });
        Ok((sum, a.shape.clone()))
    }

    fn backward(&self, _: [&Tensor; 2], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        Ok([Some(dy.clone()), Some(dy)])
    }
}

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
