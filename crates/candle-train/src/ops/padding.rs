//! Values of padding: samples of several lengths in one batch.

use candle_core::{Result, Shape, Tensor, bail};

use super::chain;
use super::operation::{Gradients, Input, Operation};
use super::simd::{build_rows, change_rows};
use super::storage::overwrite;

/// x (n, steps, ...) with zeros for the steps of each sample beyond its length, f32.
pub fn hide_padding(x: &Tensor, lengths: &[usize]) -> Result<Tensor> {
    let &[n, steps, ref inner @ ..] = x.dims() else { bail!("padding of {:?}", x.dims()) };
    let width = inner.iter().product();
    hidden(x, n, Padding { lengths: lengths.to_vec(), steps, width, pairs: None })
}

/// x (n, heads, steps, steps) with `value` for each pair of steps of which one is beyond its
/// sample's length, f32.
pub fn hide_pairs(x: &Tensor, lengths: &[usize], value: f32) -> Result<Tensor> {
    let (n, heads, steps, width) = x.dims4()?;
    if steps != width {
        bail!("pairs of {steps} and {width} steps");
    }
    let pairs = Some(Pairs { heads, value });
    hidden(x, n, Padding { lengths: lengths.to_vec(), steps, width, pairs })
}

fn hidden(x: &Tensor, n: usize, op: Padding) -> Result<Tensor> {
    if op.lengths.len() != n {
        bail!("{} lengths of {n} samples", op.lengths.len());
    }
    if op.lengths.iter().all(|&length| length >= op.steps) {
        return Ok(x.clone());
    }
    chain::apply([x], op)
}

/// Rows of `width` values, one for each step of each sample, or for each of its heads.
pub(super) struct Padding {
    lengths: Vec<usize>,
    steps: usize,
    width: usize,
    /// Rows are steps that are seen from a step.
    pairs: Option<Pairs>,
}

struct Pairs {
    heads: usize,
    /// Value of pairs with padding.
    value: f32,
}

impl Padding {
    /// Number of values of a row that are no padding: the first ones.
    fn own_values(&self, row: usize) -> usize {
        let heads = self.pairs.as_ref().map_or(1, |pairs| pairs.heads);
        let length = self.lengths[row / (heads * self.steps)];
        if row % self.steps >= length {
            return 0;
        }
        if self.pairs.is_some() { length.min(self.width) } else { self.width }
    }

    /// Gives padding in `rows`, the first of which begins at `start`, this value.
    fn fill(&self, start: usize, rows: &mut [f32], value: f32) {
        for (i, row) in rows.chunks_exact_mut(self.width).enumerate() {
            row[self.own_values(start / self.width + i)..].fill(value);
        }
    }

    /// Value that forward gives padding; backward gives it zeros.
    pub(super) fn value(&self) -> f32 {
        self.pairs.as_ref().map_or(0.0, |pairs| pairs.value)
    }

    /// `x` with this value in its padding, zero where there are no pairs: as Candle's operations.
    #[cfg(feature = "cuda")]
    pub(super) fn composed(&self, x: &Tensor, value: f32) -> Result<Tensor> {
        let n = self.lengths.len();
        let is_real = |&length: &usize| (0..self.steps).map(move |step| f32::from(step < length));
        let keep: Vec<f32> = self.lengths.iter().flat_map(is_real).collect();
        let keep = Tensor::from_vec(keep, (n, self.steps, 1), x.device())?;
        let Some(_) = self.pairs else {
            let rows = x.detach().reshape((n, self.steps, self.width))?;
            return rows.broadcast_mul(&keep)?.reshape(x.shape());
        };
        let pairs = keep.broadcast_mul(&keep.transpose(1, 2)?)?.unsqueeze(1)?;
        let value = f64::from(value);
        x.detach().broadcast_mul(&pairs)?.broadcast_add(&pairs.affine(-value, value)?)
    }
}

impl Operation for Padding {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "padding";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let y = build_rows(x.values.len(), self.width, |start, rows| {
            rows.copy_from_slice(&x.values[start..][..rows.len()]);
            self.fill(start, rows, self.value());
        });
        Ok((y, x.shape.clone()))
    }

    fn backward(&self, _: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let zero = |start: usize, rows: &mut [f32]| self.fill(start, rows, 0.0);
        overwrite(&dy, |dy| change_rows(dy, self.width, zero))?;
        Ok([Some(dy)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use test_support::assert_refused;

    use super::super::testing::check_gradients;
    use super::*;

    #[test]
    fn steps_beyond_a_samples_length_are_zeros_and_have_no_gradient() {
        let lengths = [2, 3, 0];
        let slow = |v: &[Vec<f64>]| -> Vec<f64> {
            let is_real = |i: usize| i / 4 % 3 < lengths[i / 12];
            (0..36).map(|i| if is_real(i) { v[0][i] } else { 0.0 }).collect()
        };
        check_gradients(&[&[3, 3, 4]], |t| hide_padding(&t[0], &lengths), slow, 1e-6);
        check_gradients(&[&[3, 3, 2, 2]], |t| hide_padding(&t[0], &lengths), slow, 1e-6);
    }

    #[test]
    fn pairs_with_padding_have_the_value_and_no_gradient() {
        let lengths = [2, 3];
        let slow = |v: &[Vec<f64>]| -> Vec<f64> {
            let is_real = |i: usize| (i / 3 % 3).max(i % 3) < lengths[i / 18];
            (0..36).map(|i| if is_real(i) { v[0][i] } else { -7.0 }).collect()
        };
        check_gradients(&[&[2, 2, 3, 3]], |t| hide_pairs(&t[0], &lengths, -7.0), slow, 1e-6);
    }

    #[test]
    fn without_padding_nothing_is_done_and_what_does_not_fit_is_refused() -> Result<()> {
        let x = Tensor::zeros((2, 2, 3, 3), DType::F32, &Device::Cpu)?;
        assert_eq!(hide_pairs(&x, &[3, 4], 1.0)?.id(), x.id());
        assert_refused(hide_pairs(&x, &[3], 1.0), "1 lengths of 2 samples");
        assert_refused(hide_padding(&x, &[1; 3]), "3 lengths of 2 samples");
        assert_refused(hide_pairs(&x.narrow(3, 0, 2)?, &[3, 3], 1.0), "pairs of 3 and 2 steps");
        Ok(())
    }
}
