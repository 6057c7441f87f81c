//! The sum of two tensors.

use candle_core::{Result, Shape, Tensor, bail};

use super::accumulate::add_block;
use super::chain::apply;
use super::operation::{Gradients, Input, Operation};
use super::simd::build;

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
