//! Dropout with a mask that is a function of a key, so that no state has to be saved or shared.

use candle_core::{Result, Shape, Tensor, bail};

use super::chain;
use super::operation::{Gradients, Input, Operation};
use super::simd::{build, change_blocks, vectorised};
use super::storage::overwrite;
use crate::rng::Key;

/// Zeroes each element with probability `p` and scales the others by 1 / (1 - p); any shape, f32.
///
/// Element i (row-major) is kept if number i of `key` is at least `p` (Srivastava et al., 2014).
pub fn dropout(x: &Tensor, p: f64, key: Key) -> Result<Tensor> {
    if !(0.0..=1.0).contains(&p) {
        bail!("a dropout probability of {p}");
    }
    if p == 0.0 { Ok(x.clone()) } else { chain::apply([x], Dropout { p, key }) }
}

pub(super) struct Dropout {
    pub(super) p: f64,
    pub(super) key: Key,
}

impl Dropout {
    /// Drops and scales the values at positions `start` onwards.
    fn apply(&self, start: usize, values: &mut [f32]) {
        let scale = if self.p < 1.0 { (1.0 / (1.0 - self.p)) as f32 } else { 0.0 };
        // A number of 53 bits over 2^53 is at least p if its bits are at least p 2^53, rounded up.
        let threshold = (self.p * (1u64 << 53) as f64).ceil() as u64;
        let key = self.key;
        let start = start as u64;
        vectorised(
            #[inline(always)]
            || {
                for (counter, value) in (start..).zip(values.iter_mut()) {
                    let kept = key.bits(counter) >> 11 >= threshold;
                    *value = if kept { *value * scale } else { 0.0 };
                }
            },
        );
    }
}

impl Operation for Dropout {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "dropout";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let y = build(x.values.len(), |start, y| {
            y.copy_from_slice(&x.values[start..][..y.len()]);
            self.apply(start, y);
        });
        Ok((y, x.shape.clone()))
    }

    fn backward(&self, _: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        overwrite(&dy, |dy| change_blocks(dy, |start, dy| self.apply(start, dy)))?;
        Ok([Some(dy)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use test_support::assert_refused;

    use proptest::prelude::*;

    use super::super::storage::tensor;
    use super::super::testing::on_threads;
    use super::*;
    use crate::rng::Purpose;

    #[test]
    fn the_gradient_has_the_mask_of_the_output_and_the_mean_is_kept() -> Result<()> {
        let n = 40_000;
        let x = Var::from_vec(vec![1.0f32; n], n, &Device::Cpu)?;
        let y = dropout(&x, 0.3, Key::new(1, Purpose::Dropout, 2, 3))?;
        let gradients = y.sum_all()?.backward()?;
        let y = y.to_vec1::<f32>()?;
        assert_eq!(gradients.get(&x).unwrap().to_vec1::<f32>()?, y);
        assert!((y.iter().sum::<f32>() / n as f32 - 1.0).abs() < 0.02);
        let dropped = y.iter().filter(|v| **v == 0.0).count() as f64 / n as f64;
        assert!((dropped - 0.3).abs() < 0.01);
        Ok(())
    }

    #[test]
    fn keys_decide_the_mask_and_the_ends_of_the_range_are_exact() -> Result<()> {
        let x = tensor(vec![2.0; 64], 64)?;
        let run = |p, b| dropout(&x, p, Key::new(1, Purpose::Dropout, 0, b))?.to_vec1::<f32>();
        assert_eq!(run(0.5, 1)?, run(0.5, 1)?);
        assert_ne!(run(0.5, 1)?, run(0.5, 2)?);
        assert_eq!(run(0.0, 1)?, [2.0; 64]);
        assert_eq!(run(1.0, 1)?, [0.0; 64]);
        assert_refused(run(1.5, 1), "a dropout probability of 1.5");
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn the_mask_is_that_of_the_uniform_numbers(n in 1usize..3000, p in 0f64..1.0, epoch: u64) {
            let key = Key::new(1, Purpose::Dropout, epoch, 0);
            let x = tensor(vec![1.0; n], n).unwrap();
            let y = on_threads(3, || dropout(&x, p, key)).unwrap().to_vec1::<f32>().unwrap();
            let kept = |i: usize| key.uniform(i as u64) >= p;
            prop_assert!(y.iter().enumerate().all(|(i, &y)| (y != 0.0) == kept(i)));
        }
    }
}
