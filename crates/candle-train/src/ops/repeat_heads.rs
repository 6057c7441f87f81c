//! Heads of keys and values, each for several heads of queries: grouped-query attention (Ainslie et
//! al., 2023, <https://arxiv.org/abs/2305.13245>).

use candle_core::{Result, Shape, Tensor, bail};

use super::chain;
use super::operation::{Gradients, Input, Operation};
use super::simd::{build_rows, vectorised};
use super::storage::{read, tensor};

/// Each head `times` times in a row: x (..., `heads` d) -> (..., `heads` `times` d), f32;
/// `torch.repeat_interleave` over heads.
pub fn repeat_heads(x: &Tensor, heads: usize, times: usize) -> Result<Tensor> {
    let columns = x.dims().last().copied().unwrap_or(0);
    if heads == 0 || times == 0 || columns == 0 || columns % heads != 0 {
        bail!("{heads} heads of {:?}, each {times} times", x.dims());
    }
    if times == 1 {
        return Ok(x.clone());
    }
    chain::apply([x], RepeatHeads { width: columns / heads, times })
}

/// Heads of `width` columns, each of which becomes `times`.
pub(super) struct RepeatHeads {
    width: usize,
    times: usize,
}

impl RepeatHeads {
    fn group(&self) -> usize {
        self.width * self.times
    }

    /// As Candle's operations: the heads one after another, each `times` times.
    #[cfg(feature = "cuda")]
    pub(super) fn composed(&self, x: &Tensor) -> Result<Tensor> {
        let shape = self.repeated(x.shape());
        let x = x.detach().reshape(((), 1, self.width))?;
        let heads = x.elem_count() / self.width;
        x.broadcast_as((heads, self.times, self.width))?.contiguous()?.reshape(shape)
    }

    /// The gradient of [`RepeatHeads::composed`].
    #[cfg(feature = "cuda")]
    pub(super) fn composed_gradient(&self, x: &Tensor, dy: &Tensor) -> Result<Tensor> {
        dy.detach().reshape(((), self.times, self.width))?.sum(1)?.reshape(x.shape())
    }

    fn repeated(&self, shape: &Shape) -> Shape {
        let mut dims = shape.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last *= self.times;
        }
        dims.into()
    }

    /// Sums of the repetitions of each head, in their order.
    fn gradient(&self, dy: &[f32]) -> Vec<f32> {
        let width = self.width;
        let group = self.group();
        build_rows(dy.len() / self.times, width, |start, heads| {
            let groups = dy[start * self.times..].chunks_exact(group);
            for (head, group) in heads.chunks_exact_mut(width).zip(groups) {
                vectorised(
                    #[inline(always)]
                    || sum_rows(head, group),
                );
            }
        })
    }
}

/// The sum of rows as wide as `sum`.
#[inline(always)]
fn sum_rows(sum: &mut [f32], rows: &[f32]) {
    for row in rows.chunks_exact(sum.len()) {
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum += value;
        }
    }
}

impl Operation for RepeatHeads {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "repeat_heads";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let width = self.width;
        let group = self.group();
        let y = build_rows(x.values.len() * self.times, group, |start, groups| {
            let heads = x.values[start / self.times..].chunks_exact(width);
            for (group, head) in groups.chunks_exact_mut(group).zip(heads) {
                group.chunks_exact_mut(width).for_each(|copy| copy.copy_from_slice(head));
            }
        });
        Ok((y, self.repeated(x.shape)))
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let dx = read([&dy], |[dy]| Ok(self.gradient(dy)))?;
        Ok([Some(tensor(dx, x.shape())?)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use test_support::assert_refused;

    use super::super::testing::check_gradients;
    use super::*;

    #[test]
    fn heads_and_gradients_equal_the_slow_ones() {
        for (shape, heads, times) in [([1, 1, 1], 1, 3), ([2, 5, 6], 3, 2), ([3, 700, 4], 2, 4)] {
            let width = shape[2] / heads;
            check_gradients(
                &[&shape],
                |t| repeat_heads(&t[0], heads, times),
                |v| {
                    let heads = v[0].chunks(width);
                    heads.flat_map(|head| head.repeat(times)).collect()
                },
                1e-5,
            );
        }
    }

    #[test]
    fn heads_that_do_not_fit_are_refused() -> Result<()> {
        let x = Tensor::zeros((2, 6), DType::F32, &Device::Cpu)?;
        assert_refused(repeat_heads(&x, 4, 2), "4 heads of [2, 6]");
        assert_refused(repeat_heads(&x, 0, 2), "0 heads of [2, 6]");
        assert_refused(repeat_heads(&x, 3, 0), "3 heads of [2, 6], each 0 times");
        Ok(())
    }
}
