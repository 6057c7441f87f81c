//! A tensor times a number, on all threads.

use candle_core::{Result, Shape, Tensor};

use super::chain;
use super::operation::{Gradients, Input, Operation};
use super::simd::{build, change_blocks, vectorised};
use super::storage::overwrite;

/// `factor` x, f32.
pub fn multiple(x: &Tensor, factor: f64) -> Result<Tensor> {
    chain::apply([x], Multiple { factor: factor as f32 })
}

pub(super) struct Multiple {
    pub(super) factor: f32,
}

impl Multiple {
    fn apply(&self, values: &mut [f32]) {
        vectorised(
            #[inline(always)]
            || values.iter_mut().for_each(|value| *value *= self.factor),
        );
    }
}

impl Operation for Multiple {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "multiple";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let y = build(x.values.len(), |start, y| {
            y.copy_from_slice(&x.values[start..][..y.len()]);
            self.apply(y);
        });
        Ok((y, x.shape.clone()))
    }

    fn backward(&self, _: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        overwrite(&dy, |dy| change_blocks(dy, |_, dy| self.apply(dy)))?;
        Ok([Some(dy)])
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::check_gradients;
    use super::*;

    #[test]
    fn multiples_and_gradients_equal_the_slow_ones() {
        for n in [1, 7, 5000] {
            check_gradients(
                &[&[n]],
                |t| multiple(&t[0], -2.5),
                |v| v[0].iter().map(|x| -2.5 * x).collect(),
                1e-6,
            );
        }
    }
}
