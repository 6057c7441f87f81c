//! Stochastic depth: the output of a residual block is dropped for whole samples (Huang et al., 2016).

use candle_core::{Result, Shape, Tensor, bail};

use super::chain;
use super::operation::{Gradients, Input, Operation};
use super::simd::{build_rows, change_rows};
use super::storage::overwrite;
use crate::rng::Key;

/// Zeroes each sample with probability `p` and scales the others by 1 / (1 - p): x (n, ...), f32.
/// Sample i is kept if number i of `key` is at least `p`. `torchvision.ops.StochasticDepth(p,
/// "row")`, timm's `DropPath`.
pub fn drop_path(x: &Tensor, p: f64, key: Key) -> Result<Tensor> {
    if !(0.0..=1.0).contains(&p) {
        bail!("a dropout probability of {p}");
    }
    if p == 0.0 {
        return Ok(x.clone());
    }
    let n = x.dim(0)?;
    let scale = if p < 1.0 { (1.0 / (1.0 - p)) as f32 } else { 0.0 };
    let factor = |i| if key.uniform(i) >= p { scale } else { 0.0 };
    let factors = (0..n as u64).map(factor).collect();
    chain::apply([x], DropPath { factors, sample: x.elem_count() / n.max(1) })
}

pub(super) struct DropPath {
    /// Factor of each sample.
    pub(super) factors: Vec<f32>,
    /// Values of one sample.
    sample: usize,
}

impl DropPath {
    /// Multiplies values of whole samples, the first of which begins at `start`.
    fn apply(&self, start: usize, values: &mut [f32]) {
        let factors = &self.factors[start / self.sample..];
        for (sample, factor) in values.chunks_exact_mut(self.sample).zip(factors) {
            for value in sample {
                *value *= factor;
            }
        }
    }
}

impl Operation for DropPath {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "drop-path";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let y = build_rows(x.values.len(), self.sample, |start, y| {
            y.copy_from_slice(&x.values[start..][..y.len()]);
            self.apply(start, y);
        });
        Ok((y, x.shape.clone()))
    }

    fn backward(&self, _: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        overwrite(&dy, |dy| change_rows(dy, self.sample, |start, dy| self.apply(start, dy)))?;
        Ok([Some(dy)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use test_support::assert_refused;

    use super::*;
    use crate::rng::Purpose;

    #[test]
    fn whole_samples_are_dropped_and_the_mean_is_kept() -> Result<()> {
        let n = 2000;
        let x = Var::from_vec(vec![1.0f32; 6 * n], (n, 2, 3), &Device::Cpu)?;
        let key = Key::new(1, Purpose::Dropout, 2, 3);
        let y = drop_path(&x, 0.25, key)?;
        let gradients = y.sum_all()?.backward()?;
        let y = y.flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(gradients.get(&x).unwrap().flatten_all()?.to_vec1::<f32>()?, y);
        for (i, sample) in y.chunks(6).enumerate() {
            let expected = if key.uniform(i as u64) >= 0.25 { 1.0 / 0.75 } else { 0.0 };
            assert_eq!(sample, [expected; 6]);
        }
        assert!((y.iter().sum::<f32>() / (6 * n) as f32 - 1.0).abs() < 0.05);
        Ok(())
    }

    #[test]
    fn the_ends_of_the_range_are_exact() -> Result<()> {
        let x = Tensor::new(&[[2f32, 3.0], [4.0, 5.0]], &Device::Cpu)?;
        let run = |p| drop_path(&x, p, Key::new(1, Purpose::Dropout, 0, 0))?.to_vec2::<f32>();
        assert_eq!(run(0.0)?, x.to_vec2::<f32>()?);
        assert_eq!(run(1.0)?, [[0.0; 2]; 2]);
        assert_refused(run(1.5), "a dropout probability of 1.5");
        Ok(())
    }
}
