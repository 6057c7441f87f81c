//! Softmax over the last axis.

use candle_core::{Result, Shape, Tensor, bail};

use super::chain;
use super::math::exp;
use super::operation::{Gradients, Input, Operation};
use super::simd::{build_rows, change_rows, maximum, sum, sum_of_pairs, vectorised};
use super::storage::{overwrite, read};

/// e^x / sum(e^x) over each row: (..., c) -> (..., c), f32. Minus infinity gives 0, NaN a row of
/// NaN.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    match x.dims().last() {
        Some(&c) if c > 0 => chain::apply([x], Softmax { c }),
        _ => bail!("softmax over the last axis of {:?}", x.dims()),
    }
}

pub(super) struct Softmax {
    pub(super) c: usize,
}

#[inline(always)]
fn softmax_rows(y: &mut [f32], x: &[f32], c: usize) {
    for (y, x) in y.chunks_exact_mut(c).zip(x.chunks_exact(c)) {
        // The largest is subtracted, so that nothing overflows.
        let largest = maximum(x);
        for (y, x) in y.iter_mut().zip(x) {
            *y = exp(x - largest);
        }
        let scale = (1.0
            / sum(
                y,
                #[inline(always)]
                |y| y,
            )) as f32;
        for y in y {
            *y *= scale;
        }
    }
}

/// Over dy: y (dy - sum(y dy)).
#[inline(always)]
fn pull_rows(dy: &mut [f32], y: &[f32], c: usize) {
    for (dy, y) in dy.chunks_exact_mut(c).zip(y.chunks_exact(c)) {
        let mean = sum_of_pairs(
            dy,
            y,
            #[inline(always)]
            |dy, y| dy * y,
        ) as f32;
        for (dy, y) in dy.iter_mut().zip(y) {
            *dy = y * (*dy - mean);
        }
    }
}

impl Operation for Softmax {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "softmax";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let y = build_rows(x.values.len(), self.c, |start, y| {
            let x = &x.values[start..][..y.len()];
            vectorised(
                #[inline(always)]
                || softmax_rows(y, x, self.c),
            );
        });
        Ok((y, x.shape.clone()))
    }

    fn backward(&self, _: [&Tensor; 1], y: &Tensor, dy: Tensor) -> Gradients<Self> {
        read([y], |[y]| {
            overwrite(&dy, |dy| {
                change_rows(dy, self.c, |start, dy| {
                    let y = &y[start..][..dy.len()];
                    vectorised(
                        #[inline(always)]
                        || pull_rows(dy, y, self.c),
                    );
                });
            })
        })?;
        Ok([Some(dy)])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::storage::tensor;
    use super::super::testing::{check_gradients, on_threads, values};
    use super::*;

    fn slow(x: &[f64], c: usize) -> Vec<f64> {
        let row = |row: &[f64]| -> Vec<f64> {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
            row.iter().map(|x| (x - largest).exp() / sum).collect()
        };
        x.chunks(c).flat_map(row).collect()
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for (rows, c) in [(1, 1), (3, 2), (7, 5), (2, 97), (3, 128)] {
            check_gradients(&[&[rows, c]], |t| softmax(&t[0]), |v| slow(&v[0], c), 1e-6);
        }
    }

    #[test]
    fn masked_and_extreme_values_are_exact_and_nan_stays_visible() -> Result<()> {
        let run = |row: [f32; 3]| softmax(&tensor(row.to_vec(), (1, 3))?)?.flatten_all()?.to_vec1();
        assert_eq!(run([1e30, f32::NEG_INFINITY, 1e30])?, [0.5, 0.0, 0.5]);
        assert_eq!(run([-1e30, 0.0, -200.0])?, [0.0, 1.0, 0.0]);
        assert!(run([f32::NAN, 0.0, 1.0])?.iter().all(|y: &f32| y.is_nan()));
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn rows_are_close_to_f64_and_alike_on_any_number_of_threads(
            rows in 1usize..30, c in 1usize..5000, spread in 0.1f32..50.0
        ) {
            let x: Vec<f32> = values("any", c as u64, rows * c).iter().map(|v| v * spread).collect();
            let exact: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
            let x = tensor(x, (rows, c)).unwrap();
            let run = |threads| {
                let y = on_threads(threads, || softmax(&x)).unwrap();
                y.flatten_all().unwrap().to_vec1::<f32>().unwrap()
            };
            let y = run(1);
            prop_assert!(y == run(2) && y == run(3));
            let error = y.iter().zip(slow(&exact, c))
                .map(|(y, exact)| (f64::from(*y) - exact).abs() / (exact + 1e-30))
                .fold(0.0, f64::max);
            println!("softmax of ({rows}, {c}) within {spread}: relative error against f64 {error:.1e}");
            prop_assert!(error < 1e-5);
        }
    }
}
