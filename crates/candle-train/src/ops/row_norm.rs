//! Layer normalisation and root-mean-square normalisation over the last axis.

use std::borrow::Cow;

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
use super::operation::{Gradients, Input, Operation, TwoOrThree};
use super::scratch::Scratch;
use super::simd::{build_rows, sum, sum_of_pairs, vectorised};
use super::storage::{overwrite, read};
use super::weight::{Destination, Weight};

/// Rows whose gradients of scale and shift are added in f32.
const ROWS: usize = 64;

/// gamma (x - mean) / sqrt(variance + eps) + beta, with the mean and the biased variance of each
/// row (Ba et al., 2016), as `torch.nn.LayerNorm`. x (..., c), gamma and beta (c), f32. With a
/// residual, shaped as x, the rows are those of x + residual, which is kept nowhere.
pub fn layer_norm(
    x: &Tensor,
    residual: Option<&Tensor>,
    gamma: &Weight,
    beta: Option<&Weight>,
    eps: f64,
) -> Result<Tensor> {
    check(x, residual, [gamma, beta.unwrap_or(gamma)])?;
    if let Some(shift) = beta.filter(|beta| beta.is_in_graph()) {
        return layer_norm(x, residual, gamma, None, eps)?.broadcast_add(shift.tensor());
    }
    let beta = beta.map(Weight::held).transpose()?;
    let op = RowNorm { kind: Kind::Layer, eps, beta, offset: 0.0, d_gamma: gamma.destination() };
    chain::apply(([x, gamma.tensor()], residual), op)
}

/// gamma x / sqrt(mean(x^2) + eps) over each row (Zhang and Sennrich, 2019), as `torch.nn.RMSNorm`.
/// x (..., c), gamma (c), f32.
pub fn rms_norm(x: &Tensor, gamma: &Weight, eps: f64) -> Result<Tensor> {
    check(x, None, [gamma, gamma])?;
    rms_norm_groups(x, gamma, 0.0, eps)
}

/// [`rms_norm`] of each group of c features of x (..., groups c), such as those of one head, with
/// factors offset + gamma; gamma (c). Gemma's has the offset 1.
pub fn rms_norm_groups(x: &Tensor, gamma: &Weight, offset: f32, eps: f64) -> Result<Tensor> {
    let c = gamma.tensor().elem_count();
    let columns = x.dims().last().copied().unwrap_or(0);
    if gamma.tensor().rank() != 1 || c == 0 || columns == 0 || !columns.is_multiple_of(c) {
        bail!("normalisation of {:?} in groups of {c}", x.dims());
    }
    let d_gamma = gamma.destination();
    let op = RowNorm { kind: Kind::Rms, eps, beta: None, offset, d_gamma };
    chain::apply(([x, gamma.tensor()], None), op)
}

fn check(x: &Tensor, residual: Option<&Tensor>, affine: [&Weight; 2]) -> Result<()> {
    let dims = x.dims();
    let weights = affine[0].tensor().dims();
    let c = dims.last().copied().unwrap_or(0);
    if c == 0 || affine.iter().any(|weight| weight.tensor().dims() != [c]) {
        bail!("normalisation of rows of {dims:?} with weights {weights:?}");
    }
    match residual {
        Some(residual) if residual.dims() != dims => {
            bail!("a residual {:?} for {dims:?}", residual.dims())
        }
        _ => Ok(()),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Layer,
    Rms,
}

pub(super) struct RowNorm {
    pub(super) kind: Kind,
    pub(super) eps: f64,
    /// Held, since an operation has at most three operands.
    pub(super) beta: Option<Weight>,
    /// Added to gamma.
    pub(super) offset: f32,
    pub(super) d_gamma: Destination,
}

impl RowNorm {
    /// Factors of the values of a row.
    fn factors<'a>(&self, gamma: &'a [f32]) -> Cow<'a, [f32]> {
        if self.offset == 0.0 {
            return Cow::Borrowed(gamma);
        }
        gamma.iter().map(|gamma| self.offset + gamma).collect()
    }

    /// Mean that is subtracted from the values of a row, and factor that they are then multiplied by.
    #[inline(always)]
    fn moments(&self, row: &[f32]) -> [f32; 2] {
        let n = row.len() as f64;
        let mean = match self.kind {
            Kind::Layer => {
                (sum(
                    row,
                    #[inline(always)]
                    |x| x,
                ) / n) as f32
            }
            Kind::Rms => 0.0,
        };
        let variance = sum(
            row,
            #[inline(always)]
            |x| (x - mean) * (x - mean),
        ) / n;
        [mean, (1.0 / (variance + self.eps).sqrt()) as f32]
    }

    /// Normalises the rows of y where they are.
    #[inline(always)]
    fn normalise(&self, y: &mut [f32], gamma: &[f32], beta: Option<&[f32]>) {
        for y in y.chunks_exact_mut(gamma.len()) {
            let [mean, inverse] = self.moments(y);
            for (y, gamma) in y.iter_mut().zip(gamma) {
                *y = (*y - mean) * inverse * gamma;
            }
            if let Some(beta) = beta {
                for (y, beta) in y.iter_mut().zip(beta) {
                    *y += beta;
                }
            }
        }
    }

    fn normalised(
        &self,
        x: &[f32],
        gamma: &[f32],
        beta: Option<&[f32]>,
        residual: Option<&[f32]>,
    ) -> Vec<f32> {
        build_rows(x.len(), gamma.len(), |start, y| {
            vectorised(
                #[inline(always)]
                || {
                    add(y, &x[start..], residual.map(|residual| &residual[start..]));
                    self.normalise(y, gamma, beta);
                },
            );
        })
    }

    /// Over the rows of dy, the gradient of x: gamma / std (g - mean(g) - x̂ mean(g x̂)), with g =
    /// gamma dy. Adds to the gradients of gamma and beta.
    #[inline(always)]
    fn pull(&self, dy: &mut [f32], x: &[f32], gamma: &[f32], affine: &mut [f32]) {
        let c = gamma.len();
        let (of_gamma, of_beta) = affine.split_at_mut(c);
        for (dy, x) in dy.chunks_exact_mut(c).zip(x.chunks_exact(c)) {
            let [mean, inverse] = self.moments(x);
            let sums = of_gamma.iter_mut().zip(&mut *of_beta);
            for ((((of_gamma, of_beta), g), x), gamma) in sums.zip(&mut *dy).zip(x).zip(gamma) {
                *of_gamma += *g * (x - mean) * inverse;
                *of_beta += *g;
                *g *= gamma;
            }
            let n = c as f64;
            let plain = match self.kind {
                Kind::Layer => {
                    (sum(
                        dy,
                        #[inline(always)]
                        |g| g,
                    ) / n) as f32
                }
                Kind::Rms => 0.0,
            };
            let weighted = sum_of_pairs(
                dy,
                x,
                #[inline(always)]
                |g, x| g * (x - mean),
            ) / n;
            let weighted = (weighted * f64::from(inverse) * f64::from(inverse)) as f32;
            for (g, x) in dy.iter_mut().zip(x) {
                *g = (*g - plain - (x - mean) * weighted) * inverse;
            }
        }
    }

    /// [`RowNorm::pull`] for the rows from position `start` on; what they add to the gradients of
    /// gamma and beta.
    fn pull_block(
        &self,
        start: usize,
        dy: &mut [f32],
        x: &[f32],
        gamma: &[f32],
        residual: Option<&[f32]>,
    ) -> Vec<f32> {
        let x = &x[start..][..dy.len()];
        let mut affine = vec![0f32; 2 * gamma.len()];
        match residual {
            None => vectorised(
                #[inline(always)]
                || self.pull(dy, x, gamma, &mut affine),
            ),
            Some(residual) => {
                let mut sum = Scratch::new(dy.len());
                vectorised(
                    #[inline(always)]
                    || {
                        add(&mut sum, x, Some(&residual[start..]));
                        self.pull(dy, &sum, gamma, &mut affine);
                    },
                );
            }
        }
        affine
    }
}

/// x + residual, as far as y goes.
#[inline(always)]
fn add(y: &mut [f32], x: &[f32], residual: Option<&[f32]>) {
    y.copy_from_slice(&x[..y.len()]);
    if let Some(residual) = residual {
        for (y, residual) in y.iter_mut().zip(residual) {
            *y += residual;
        }
    }
}

impl Operation for RowNorm {
    type Operands<T> = TwoOrThree<T>;

    const NAME: &'static str = "row-norm";

    fn forward(&self, ([x, gamma], residual): TwoOrThree<Input<'_>>) -> Result<(Vec<f32>, Shape)> {
        let residual = residual.map(|residual| residual.values);
        let gamma = self.factors(gamma.values);
        let y = match &self.beta {
            None => self.normalised(x.values, &gamma, None, residual),
            Some(beta) => read([beta.tensor()], |[beta]| {
                Ok(self.normalised(x.values, &gamma, Some(beta), residual))
            })?,
        };
        Ok((y, x.shape.clone()))
    }

    fn backward(
        &self,
        ([x, gamma], residual): TwoOrThree<&Tensor>,
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let c = gamma.elem_count();
        let blocks: Vec<Vec<f32>> =
            read([x, gamma, residual.unwrap_or(x)], |[x, gamma, values]| {
                let residual = residual.map(|_| values);
                let gamma = &*self.factors(gamma);
                overwrite(&dy, |dy| {
                    let blocks = dy.par_chunks_mut(ROWS * c).enumerate();
                    blocks
                        .map(|(i, dy)| self.pull_block(i * ROWS * c, dy, x, gamma, residual))
                        .collect()
                })
            })?;
        let mut total = vec![0f64; 2 * c];
        for affine in blocks {
            total.iter_mut().zip(affine).for_each(|(total, part)| *total += f64::from(part));
        }
        let part = |values: &[f64]| values.iter().map(|&v| v as f32).collect();
        // The shift's leaves first: it was registered last.
        if let Some(beta) = &self.beta {
            beta.destination().send(part(&total[c..]), beta.tensor())?;
        }
        let of_gamma = self.d_gamma.send(part(&total[..c]), gamma)?;
        // The residual's is that of x.
        Ok(([Some(dy.clone()), of_gamma], Some(Some(dy))))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Error, Var};
    use proptest::prelude::*;
    use test_support::assert_refused;

    use super::super::storage::tensor;
    use super::super::testing::{check_gradients, check_weights, flat, on_threads, values};
    use super::*;

    fn slow(x: &[f64], gamma: &[f64], beta: Option<&[f64]>, kind: Kind) -> Vec<f64> {
        let c = gamma.len();
        let row = |row: &[f64]| -> Vec<f64> {
            let mean = if kind == Kind::Layer { row.iter().sum::<f64>() / c as f64 } else { 0.0 };
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / c as f64;
            let value = |i: usize| (row[i] - mean) / (variance + 1e-5).sqrt() * gamma[i];
            (0..c).map(|i| value(i) + beta.map_or(0.0, |beta| beta[i])).collect()
        };
        x.chunks(c).flat_map(row).collect()
    }

    #[test]
    fn scale_and_shift_may_be_variables_of_candles_graph() {
        check_gradients(
            &[&[7, 3], &[3], &[3]],
            |t| layer_norm(&t[0], None, &(&t[1]).into(), Some(&(&t[2]).into()), 1e-5),
            |v| slow(&v[0], &v[1], Some(&v[2]), Kind::Layer),
            1e-4,
        );
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for (rows, c) in [(1, 2), (7, 3), (70, 5), (3, 97), (2, 128)] {
            let (x, affine): ([usize; 2], _) = ([rows, c], [c]);
            check_weights(
                &[&x, &affine, &affine],
                |t| layer_norm(t[0].tensor(), None, &t[1], Some(&t[2]), 1e-5),
                |v| slow(&v[0], &v[1], Some(&v[2]), Kind::Layer),
                1e-4,
            );
            check_weights(
                &[&x, &affine],
                |t| layer_norm(t[0].tensor(), None, &t[1], None, 1e-5),
                |v| slow(&v[0], &v[1], None, Kind::Layer),
                1e-4,
            );
            check_weights(
                &[&x, &affine, &affine, &x],
                |t| layer_norm(t[0].tensor(), Some(t[3].tensor()), &t[1], Some(&t[2]), 1e-5),
                |v| {
                    let sum: Vec<f64> = v[0].iter().zip(&v[3]).map(|(x, r)| x + r).collect();
                    slow(&sum, &v[1], Some(&v[2]), Kind::Layer)
                },
                1e-4,
            );
            check_weights(
                &[&x, &affine],
                |t| rms_norm(t[0].tensor(), &t[1], 1e-5),
                |v| slow(&v[0], &v[1], None, Kind::Rms),
                1e-4,
            );
        }
    }

    #[test]
    fn a_row_of_equal_values_becomes_the_shift() -> Result<()> {
        let x = tensor(vec![1e4; 6], (2, 3))?;
        let weight = |value: f32, c| Ok::<_, Error>(Weight::from(&tensor(vec![value; c], c)?));
        let (gamma, beta) = (weight(2.0, 3)?, weight(0.5, 3)?);
        let y = layer_norm(&x, None, &gamma, Some(&beta), 1e-5)?;
        assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [0.5; 6]);
        assert_refused(
            layer_norm(&x, None, &weight(1.0, 2)?, None, 1e-5),
            "rows of [2, 3] with weights [2]",
        );
        Ok(())
    }

    #[test]
    fn bits_do_not_depend_on_the_number_of_threads() {
        let run = |threads| {
            on_threads(threads, || {
                let x = Var::from_vec(values("x", 0, 1001 * 7), (1001, 7), &Device::Cpu).unwrap();
                let gamma = Var::from_vec(values("gamma", 0, 7), 7, &Device::Cpu).unwrap();
                let y = layer_norm(&x, None, &Weight::from(gamma.as_tensor()), None, 1e-5).unwrap();
                let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
                [flat(&y), flat(grads.get(&x).unwrap()), flat(grads.get(&gamma).unwrap())]
            })
        };
        assert!(run(1) == run(2) && run(1) == run(3));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn outputs_are_close_to_f64_for_any_shape(rows in 1usize..40, c in 2usize..600, shift in -100f32..100.0) {
            let x: Vec<f32> = values("any", c as u64, rows * c).iter().map(|v| v + shift).collect();
            let exact: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
            let x = tensor(x, (rows, c)).unwrap();
            let gamma = Weight::from(&tensor(vec![1.0; c], c).unwrap());
            for (kind, y) in [(Kind::Layer, layer_norm(&x, None, &gamma, None, 1e-5)), (Kind::Rms, rms_norm(&x, &gamma, 1e-5))] {
                let y = y.unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
                let error = y.iter().zip(slow(&exact, &vec![1.0; c], None, kind))
                    .map(|(y, exact)| (f64::from(*y) - exact).abs())
                    .fold(0.0, f64::max);
                println!("norm of ({rows}, {c}) around {shift}: error against f64 {error:.1e}");
                prop_assert!(error < 1e-6 * (10.0 + f64::from(shift.abs()) * 10.0));
            }
        }
    }
}
