//! A number for each channel of each sample, added.

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
use super::column_sums::column_sums;
use super::operation::{Gradients, Input, Operation};
use super::simd::{build_rows, vectorised};
use super::storage::{read, tensor};

/// x + shift: x (n, ..., c), shift (n, 1, ..., c) or (n, c) -> the shape of x, f32. With
/// [`super::gated`] before it, `FiLM` (Perez et al., 2018, <https://arxiv.org/abs/1709.07871>).
pub fn add_channel_bias(x: &Tensor, shift: &Tensor) -> Result<Tensor> {
    let (&[n, .., c], &[samples, .., channels]) = (x.dims(), shift.dims()) else {
        bail!("a shift {:?} of {:?}", shift.dims(), x.dims());
    };
    if [samples, channels] != [n, c] || shift.elem_count() != n * c {
        bail!("a shift {:?} of {:?}", shift.dims(), x.dims());
    }
    chain::apply([x, shift], Shift { sample: x.elem_count() / n.max(1), c })
}

/// Values of a sample, and its channels.
pub(super) struct Shift {
    pub(super) sample: usize,
    pub(super) c: usize,
}

impl Operation for Shift {
    type Operands<T> = [T; 2];

    const NAME: &'static str = "shift";

    fn forward(&self, [x, shift]: [Input<'_>; 2]) -> Result<(Vec<f32>, Shape)> {
        let Self { sample, c } = *self;
        let y = build_rows(x.values.len(), c, |start, y| {
            y.copy_from_slice(&x.values[start..][..y.len()]);
            for (row, y) in y.chunks_exact_mut(c).enumerate() {
                let shift = &shift.values[(start + row * c) / sample * c..][..c];
                vectorised(
                    #[inline(always)]
                    || y.iter_mut().zip(shift).for_each(|(y, shift)| *y += shift),
                );
            }
        });
        Ok((y, x.shape.clone()))
    }

    fn backward(&self, [_, shift]: [&Tensor; 2], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let sums = read([&dy], |[dy]| {
            let samples = dy.par_chunks(self.sample.max(1));
            let sums: Vec<Vec<f32>> = samples.map(|dy| column_sums(dy, self.c)).collect();
            tensor(sums.concat(), shift.shape())
        })?;
        Ok([Some(dy), Some(sums)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::super::testing::check_gradients;
    use super::*;

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        let slow = |v: &[Vec<f64>]| -> Vec<f64> {
            (0..v[0].len()).map(|i| v[0][i] + v[1][i / 12 * 3 + i % 3]).collect()
        };
        check_gradients(&[&[2, 4, 3], &[2, 1, 3]], |t| add_channel_bias(&t[0], &t[1]), slow, 1e-6);
        check_gradients(&[&[2, 2, 2, 3], &[2, 3]], |t| add_channel_bias(&t[0], &t[1]), slow, 1e-6);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() -> Result<()> {
        let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu);
        for dims in [&[2, 3][..], &[2, 4, 3], &[1, 1, 3], &[3]] {
            let fits = dims == [2, 3];
            assert_eq!(
                add_channel_bias(&zeros(&[2, 4, 3])?, &zeros(dims)?).is_ok(),
                fits,
                "{dims:?}"
            );
        }
        Ok(())
    }
}
