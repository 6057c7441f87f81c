//! Products of a tensor and a number, and of two tensors, of which the second may be smaller: a factor
//! for each channel, or for each channel of a sample.

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
use super::column_sums::column_sums_of_products;
use super::operation::{Gradients, Input, Operation};
use super::simd::{build, build_rows, change_blocks, change_rows, vectorised};
use super::storage::{overwrite, read};
use super::weight::{Destination, Weight};

/// `factor` x, f32.
pub fn scale(x: &Tensor, factor: f64) -> Result<Tensor> {
    chain::apply([x], Multiple { factor: factor as f32 })
}

/// a b, of one shape, f32.
pub fn product(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.dims() != b.dims() {
        bail!("a product of {:?} and {:?}", a.dims(), b.dims());
    }
    let c = a.dims().last().copied().unwrap_or(1);
    chain::apply([a, b], Product { rows: 1, c, destination: Destination::Graph })
}

/// Each channel of each sample times its gate, as in squeeze and excitation: x (n, ..., c), gate
/// (n, c) or (n, 1, 1, c) -> the shape of x, f32.
pub fn gated(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    let (&[n, .., c], &[gates, .., _]) = (x.dims(), gate.dims()) else {
        bail!("a gate {:?} for {:?}", gate.dims(), x.dims());
    };
    if gates != n || gate.dims().last() != Some(&c) || gate.elem_count() != n * c {
        bail!("a gate {:?} for {:?}", gate.dims(), x.dims());
    }
    let rows = x.elem_count() / (n * c).max(1);
    chain::apply([x, gate], Product { rows, c, destination: Destination::Graph })
}

/// Each channel times its scale: x (..., c), scale (c) or (c, 1, 1) -> the shape of x, f32.
pub fn scale_channels(x: &Tensor, scale: &Weight) -> Result<Tensor> {
    let c = scale.tensor().elem_count();
    if x.dims().last() != Some(&c) {
        bail!("{c} scales for {:?}", x.dims());
    }
    let op = Product { rows: x.elem_count() / c.max(1), c, destination: scale.destination() };
    chain::apply([x, scale.tensor()], op)
}

/// Factors (groups, c) of x (groups, rows, c).
pub(super) struct Product {
    pub(super) rows: usize,
    pub(super) c: usize,
    /// Destination of the gradient of the factors.
    pub(super) destination: Destination,
}

impl Product {
    /// The factors of the row of c values that begins at `start`.
    fn factors<'a>(&self, factors: &'a [f32], start: usize) -> &'a [f32] {
        &factors[start / (self.rows * self.c) * self.c..][..self.c]
    }

    /// Gradient of the factors: the sum of x dy over the rows of each.
    fn gradient(&self, x: &[f32], dy: &[f32]) -> Vec<f32> {
        if self.rows == 1 {
            return build(x.len(), |start, block| {
                let pairs = x[start..].iter().zip(&dy[start..]);
                for (product, (x, dy)) in block.iter_mut().zip(pairs) {
                    *product = x * dy;
                }
            });
        }
        let group = (self.rows * self.c).max(1);
        let groups = x.par_chunks(group).zip(dy.par_chunks(group));
        let sums: Vec<Vec<f32>> =
            groups.map(|(x, dy)| column_sums_of_products(x, dy, self.c)).collect();
        sums.concat()
    }
}

/// Each value times its factor.
#[inline(always)]
fn multiply(values: &mut [f32], factors: &[f32]) {
    for (value, factor) in values.iter_mut().zip(factors) {
        *value *= factor;
    }
}

impl Operation for Product {
    type Operands<T> = [T; 2];

    const NAME: &'static str = "product";

    fn forward(&self, [x, factors]: [Input<'_>; 2]) -> Result<(Vec<f32>, Shape)> {
        let c = self.c;
        let y = build_rows(x.values.len(), c, |start, y| {
            y.copy_from_slice(&x.values[start..][..y.len()]);
            for (row, y) in y.chunks_exact_mut(c).enumerate() {
                let factors = self.factors(factors.values, start + row * c);
                vectorised(
                    #[inline(always)]
                    || multiply(y, factors),
                );
            }
        });
        Ok((y, x.shape.clone()))
    }

    fn backward(&self, [x, factors]: [&Tensor; 2], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let of_factors = read([x, &dy], |[x, dy]| Ok(self.gradient(x, dy)))?;
        let of_factors = self.destination.send(of_factors, factors)?;
        let c = self.c;
        read([factors], |[factors]| {
            overwrite(&dy, |dy| {
                change_rows(dy, c, |start, dy| {
                    for (row, dy) in dy.chunks_exact_mut(c).enumerate() {
                        let factors = self.factors(factors, start + row * c);
                        vectorised(
                            #[inline(always)]
                            || multiply(dy, factors),
                        );
                    }
                });
            })
        })?;
        Ok([Some(dy), of_factors])
    }
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
    use candle_core::{Device, Var};
    use test_support::assert_refused;

    use super::super::testing::{check_gradients, check_weights, flat, on_threads, values};
    use super::*;

    /// Each value of x (groups, rows, c) times that of (groups, c).
    fn slow(v: &[Vec<f64>], rows: usize, c: usize) -> Vec<f64> {
        v[0].iter().enumerate().map(|(i, x)| x * v[1][i / (rows * c) * c + i % c]).collect()
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for shape in [[1, 1, 1], [2, 3, 5], [3, 200, 2]] {
            let [n, rows, c] = shape;
            check_gradients(&[&shape, &shape], |t| product(&t[0], &t[1]), |v| slow(v, 1, c), 1e-6);
            check_gradients(
                &[&shape, &[n, c]],
                |t| gated(&t[0], &t[1]),
                |v| slow(v, rows, c),
                1e-5,
            );
            check_weights(
                &[&shape, &[c]],
                |t| scale_channels(t[0].tensor(), &t[1]),
                |v| slow(v, n * rows, c),
                1e-5,
            );
        }
    }

    #[test]
    fn multiples_and_gradients_equal_the_slow_ones() {
        for n in [1, 7, 5000] {
            check_gradients(
                &[&[n]],
                |t| scale(&t[0], -2.5),
                |v| v[0].iter().map(|x| -2.5 * x).collect(),
                1e-6,
            );
        }
    }

    #[test]
    fn factors_that_do_not_fit_are_refused() -> Result<()> {
        let x = Tensor::zeros((2, 3, 4), candle_core::DType::F32, &Device::Cpu)?;
        assert_refused(product(&x, &x.narrow(1, 0, 2)?), "a product of [2, 3, 4] and [2, 2, 4]");
        assert_refused(
            gated(&x, &x.narrow(1, 0, 1)?.reshape((4, 2))?),
            "a gate [4, 2] for [2, 3, 4]",
        );
        assert_refused(
            scale_channels(&x, &Weight::from(&x.flatten_all()?.narrow(0, 0, 3)?)),
            "3 scales for [2, 3, 4]",
        );
        Ok(())
    }

    #[test]
    fn bits_do_not_depend_on_the_number_of_threads() {
        let run = |threads| {
            on_threads(threads, || {
                let var = |name: &str, shape: &[usize]| {
                    let n = shape.iter().product();
                    Var::from_vec(values(name, 0, n), shape, &Device::Cpu).unwrap()
                };
                let (x, scale) = (var("x", &[5, 700, 7]), var("scale", &[7]));
                let y = scale_channels(&x, &Weight::from(scale.as_tensor())).unwrap();
                let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
                [flat(&y), flat(grads.get(&x).unwrap()), flat(grads.get(&scale).unwrap())]
            })
        };
        assert!(run(1) == run(2) && run(1) == run(3));
    }
}
