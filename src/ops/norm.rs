//! Batch normalisation over the last axis, fused with a residual and a rectifier.
//!
//! Rows are all axes but the last. Statistics are exact to f32: each block of rows finds its own mean and
//! squared deviations, and blocks are merged in f64 in a fixed order (Chan et al., 1983).

use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::storage::{output, read, slice, tensor};

/// Rows per block.
const ROWS: usize = 128;

/// What follows the normalisation (and the residual).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Identity,
    /// max(y, 0), with gradient 0 at 0.
    Relu,
}

/// Statistics of one batch, one entry per channel.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchStatistics {
    /// Mean.
    pub mean: Vec<f32>,
    /// Biased variance: squared deviations divided by the number of rows.
    pub variance: Vec<f32>,
    /// Values per channel.
    pub rows: usize,
}

/// Statistics of the training data, for evaluation; (c) f32 each.
#[derive(Clone, Copy)]
pub struct RunningStatistics<'a> {
    /// Mean.
    pub mean: &'a Tensor,
    /// Variance.
    pub variance: &'a Tensor,
}

/// activation(gamma (x - mean) / sqrt(variance + eps) + beta + residual) with the statistics of this
/// batch, which
/// are returned too (Ioffe and Szegedy, 2015). x and residual (..., c), gamma and beta (c), f32.
///
/// # Errors
///
/// One value per channel, as in PyTorch, or shapes that do not fit.
pub fn batch_norm(
    x: &Tensor,
    [gamma, beta]: [&Tensor; 2],
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
) -> Result<(Tensor, BatchStatistics)> {
    let x = x.contiguous()?;
    let c = check(&x, [gamma, beta], residual)?;
    let rows = x.elem_count() / c;
    if rows < 2 {
        bail!("batch normalisation needs more than one value per channel, got {:?}", x.dims());
    }
    let statistics = read([&x], |[x]| Ok(batch_statistics(x, c)))?;
    let inverse = |v: &f32| (1.0 / (f64::from(*v) + eps).sqrt()) as f32;
    let op = Norm {
        mean: statistics.mean.clone(),
        inverse_std: statistics.variance.iter().map(inverse).collect(),
        activation,
        source: Source::Batch,
    };
    Ok((apply(&x, gamma, beta, residual, op)?, statistics))
}

/// [`batch_norm`] with the statistics of the training data. Asking for its gradient is an error.
///
/// # Errors
///
/// Shapes that do not fit.
pub fn batch_norm_running(
    x: &Tensor,
    [gamma, beta]: [&Tensor; 2],
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
    running: RunningStatistics<'_>,
) -> Result<Tensor> {
    let x = x.contiguous()?;
    check(&x, [gamma, beta], residual)?;
    let inverse = |v: f32| (1.0 / (f64::from(v) + eps).sqrt()) as f32;
    let op = Norm {
        mean: running.mean.to_vec1()?,
        inverse_std: running.variance.to_vec1::<f32>()?.into_iter().map(inverse).collect(),
        activation,
        source: Source::Running,
    };
    apply(&x, gamma, beta, residual, op)
}

fn check(x: &Tensor, affine: [&Tensor; 2], residual: Option<&Tensor>) -> Result<usize> {
    let c = x.dims().last().copied().unwrap_or(0);
    if c == 0 || affine.iter().any(|tensor| tensor.dims() != [c]) {
        bail!("batch normalisation of {:?} with weights {:?}", x.dims(), affine[0].dims());
    }
    match residual {
        Some(residual) if residual.dims() != x.dims() => {
            bail!("a residual {:?} for {:?}", residual.dims(), x.dims())
        }
        _ => Ok(c),
    }
}

fn apply(
    x: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    residual: Option<&Tensor>,
    op: Norm,
) -> Result<Tensor> {
    // An operation has at most three operands: (2, c).
    let affine = Tensor::stack(&[gamma, beta], 0)?;
    match residual {
        None => x.apply_op2(&affine, op),
        Some(residual) => x.apply_op3(&affine, &residual.contiguous()?, op),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Batch,
    Running,
}

struct Norm {
    mean: Vec<f32>,
    inverse_std: Vec<f32>,
    activation: Activation,
    source: Source,
}

impl Norm {
    fn forward(&self, x: &[f32], affine: &[f32], residual: Option<&[f32]>) -> Vec<f32> {
        let c = self.mean.len();
        let (gamma, beta) = affine.split_at(c);
        let scale: Vec<f32> = gamma.iter().zip(&self.inverse_std).map(|(g, s)| g * s).collect();
        let relu = self.activation == Activation::Relu;
        let mut y = vec![0.0; x.len()];
        y.par_chunks_mut(ROWS * c).enumerate().for_each(|(block, y)| {
            let start = block * ROWS * c;
            let x = &x[start..start + y.len()];
            for (y, x) in y.chunks_exact_mut(c).zip(x.chunks_exact(c)) {
                for i in 0..c {
                    y[i] = (x[i] - self.mean[i]) * scale[i] + beta[i];
                }
            }
            if let Some(residual) = residual {
                y.iter_mut().zip(&residual[start..]).for_each(|(y, r)| *y += r);
            }
            if relu {
                for y in y {
                    *y = if *y < 0.0 { 0.0 } else { *y };
                }
            }
        });
        y
    }

    fn backward(&self, x: &Tensor, affine: &Tensor, y: &Tensor, dy: &Tensor) -> Result<Gradients> {
        if self.source == Source::Running {
            bail!("no gradient flows through a batch norm that is being evaluated");
        }
        read([x, affine, y, dy], |[x_values, affine_values, y, dy]| {
            let before = self.before_activation(y, dy);
            let c = self.mean.len();
            let sums = gradient_sums(x_values, &before, &self.mean);
            let d_gamma = (0..c).map(|i| (sums[c + i] * f64::from(self.inverse_std[i])) as f32);
            let d_beta = sums[..c].iter().map(|&sum| sum as f32);
            let d_affine: Vec<f32> = d_gamma.chain(d_beta).collect();
            let dx = self.input_gradient(x_values, &before, &affine_values[..c], &d_affine);
            Ok(Gradients {
                dx: tensor(dx, x.shape())?,
                affine: tensor(d_affine, affine.shape())?,
                residual: tensor(before, x.shape())?,
            })
        })
    }

    /// Gradient before the activation; that of the residual.
    fn before_activation(&self, y: &[f32], dy: &[f32]) -> Vec<f32> {
        let mut gradient = dy.to_vec();
        if self.activation == Activation::Relu {
            let block = ROWS * self.mean.len();
            gradient.par_chunks_mut(block).zip(y.par_chunks(block)).for_each(|(g, y)| {
                g.iter_mut().zip(y).for_each(|(g, y)| *g = if *y > 0.0 { *g } else { 0.0 });
            });
        }
        gradient
    }

    /// dx = gamma / std (g - mean(g) - x̂ mean(g x̂)), as a g + b (x - mean) + k per channel.
    fn input_gradient(&self, x: &[f32], g: &[f32], gamma: &[f32], d_affine: &[f32]) -> Vec<f32> {
        let c = self.mean.len();
        let rows = (x.len() / c) as f32;
        let scale: Vec<f32> = gamma.iter().zip(&self.inverse_std).map(|(g, s)| g * s).collect();
        let slope: Vec<f32> =
            (0..c).map(|i| -scale[i] * d_affine[i] * self.inverse_std[i] / rows).collect();
        let shift: Vec<f32> = (0..c).map(|i| -scale[i] * d_affine[c + i] / rows).collect();
        let mut dx = vec![0.0; x.len()];
        let block = ROWS * c;
        let blocks = dx.par_chunks_mut(block).zip(x.par_chunks(block)).zip(g.par_chunks(block));
        blocks.for_each(|((dx, x), g)| {
            let rows = dx.chunks_exact_mut(c).zip(x.chunks_exact(c)).zip(g.chunks_exact(c));
            for ((dx, x), g) in rows {
                for i in 0..c {
                    dx[i] = scale[i] * g[i] + slope[i] * (x[i] - self.mean[i]) + shift[i];
                }
            }
        });
        dx
    }
}

struct Gradients {
    dx: Tensor,
    /// (2, c): gamma, beta.
    affine: Tensor,
    residual: Tensor,
}

impl CustomOp2 for Norm {
    fn name(&self) -> &'static str {
        "batch-norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        affine: &CpuStorage,
        affine_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let y = self.forward(slice(x, x_layout)?, slice(affine, affine_layout)?, None);
        Ok(output(y, x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        affine: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let gradients = self.backward(x, affine, y, dy)?;
        Ok((Some(gradients.dx), Some(gradients.affine)))
    }
}

impl CustomOp3 for Norm {
    fn name(&self) -> &'static str {
        "batch-norm-residual"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        affine: &CpuStorage,
        affine_layout: &Layout,
        residual: &CpuStorage,
        residual_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let residual = slice(residual, residual_layout)?;
        let y = self.forward(slice(x, x_layout)?, slice(affine, affine_layout)?, Some(residual));
        Ok(output(y, x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        affine: &Tensor,
        _residual: &Tensor,
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let gradients = self.backward(x, affine, y, dy)?;
        Ok((Some(gradients.dx), Some(gradients.affine), Some(gradients.residual)))
    }
}

/// Mean and biased variance of each channel of x (rows, c).
fn batch_statistics(x: &[f32], c: usize) -> BatchStatistics {
    let blocks: Vec<Vec<[f64; 2]>> =
        x.par_chunks(ROWS * c).map(|block| block_statistics(block, c)).collect();
    let (mut count, mut total) = (0.0, vec![[0.0; 2]; c]);
    for (block, values) in blocks.iter().zip(x.chunks(ROWS * c)) {
        let n = (values.len() / c) as f64;
        for (total, block) in total.iter_mut().zip(block) {
            let delta = block[0] - total[0];
            total[0] += delta * n / (count + n);
            total[1] += block[1] + delta * delta * count * n / (count + n);
        }
        count += n;
    }
    BatchStatistics {
        mean: total.iter().map(|t| t[0] as f32).collect(),
        variance: total.iter().map(|t| (t[1] / count) as f32).collect(),
        rows: x.len() / c,
    }
}

/// Mean and sum of squared deviations of each channel of one block.
fn block_statistics(block: &[f32], c: usize) -> Vec<[f64; 2]> {
    let n = (block.len() / c) as f32;
    let mut mean = vec![0f32; c];
    for row in block.chunks_exact(c) {
        mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += x);
    }
    for mean in &mut mean {
        *mean /= n;
    }
    let (mut rest, mut squares) = (vec![0f32; c], vec![0f32; c]);
    for row in block.chunks_exact(c) {
        for i in 0..c {
            let deviation = row[i] - mean[i];
            rest[i] += deviation;
            squares[i] += deviation * deviation;
        }
    }
    // The deviations sum to zero but for the rounding of the mean, which is so taken back.
    (0..c)
        .map(|i| {
            let rest = f64::from(rest[i] / n);
            let squares = f64::from(squares[i]) - f64::from(n) * rest * rest;
            [f64::from(mean[i]) + rest, squares.max(0.0)]
        })
        .collect()
}

/// Per channel: sum of g, then sum of g (x - mean).
fn gradient_sums(x: &[f32], g: &[f32], mean: &[f32]) -> Vec<f64> {
    let c = mean.len();
    let block_sums = |(x, g): (&[f32], &[f32])| {
        let mut sums = vec![0f32; 2 * c];
        let (plain, weighted) = sums.split_at_mut(c);
        for (x, g) in x.chunks_exact(c).zip(g.chunks_exact(c)) {
            for i in 0..c {
                plain[i] += g[i];
                weighted[i] += g[i] * (x[i] - mean[i]);
            }
        }
        sums
    };
    let blocks = x.par_chunks(ROWS * c).zip(g.par_chunks(ROWS * c)).map(block_sums);
    let mut total = vec![0f64; 2 * c];
    for sums in blocks.collect::<Vec<_>>() {
        total.iter_mut().zip(sums).for_each(|(total, sum)| *total += f64::from(sum));
    }
    total
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::super::testing::{check_gradients, values};
    use super::*;

    fn slow(v: &[Vec<f64>], residual: Option<&Vec<f64>>, activation: Activation) -> Vec<f64> {
        let (x, gamma, beta) = (&v[0], &v[1], &v[2]);
        let c = gamma.len();
        let m = (x.len() / c) as f64;
        let channel = |i: usize| x.iter().skip(i).step_by(c);
        let mean: Vec<f64> = (0..c).map(|i| channel(i).sum::<f64>() / m).collect();
        let var: Vec<f64> =
            (0..c).map(|i| channel(i).map(|x| (x - mean[i]).powi(2)).sum::<f64>() / m).collect();
        (0..x.len())
            .map(|j| {
                let i = j % c;
                let y = gamma[i] * (x[j] - mean[i]) / (var[i] + 1e-5).sqrt() + beta[i];
                let y = y + residual.map_or(0.0, |r| r[j]);
                if activation == Activation::Relu { y.max(0.0) } else { y }
            })
            .collect()
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for activation in [Activation::Identity, Activation::Relu] {
            for (rows, c) in [(2, 1), (7, 3), (150, 2), (5, 19)] {
                let (x, affine) = ([rows, 1, 1, c], [c]);
                check_gradients(
                    &[&x, &affine, &affine],
                    |t| Ok(batch_norm(&t[0], [&t[1], &t[2]], None, activation, 1e-5)?.0),
                    |v| slow(v, None, activation),
                    1e-4,
                );
                check_gradients(
                    &[&x, &affine, &affine, &x],
                    |t| Ok(batch_norm(&t[0], [&t[1], &t[2]], Some(&t[3]), activation, 1e-5)?.0),
                    |v| slow(v, Some(&v[3]), activation),
                    1e-4,
                );
            }
        }
    }

    #[test]
    fn statistics_stay_exact_far_from_zero_and_beside_an_outlier() -> Result<()> {
        let n = 1000;
        let noise = values("noise", 0, n);
        for (shift, first) in [(0.0, 0.0), (1000.0, 1000.0), (0.0, 500.0)] {
            let mut x: Vec<f32> = noise.iter().map(|v| v + shift).collect();
            x[0] = first;
            let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n as f64;
            let var = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n as f64;
            let one = tensor(vec![1.0], 1)?;
            let x = tensor(x, (n, 1))?;
            let (_, found) = batch_norm(&x, [&one, &one], None, Activation::Identity, 1e-5)?;
            assert!((f64::from(found.mean[0]) - mean).abs() < 1e-6 * (1.0 + mean.abs()));
            assert!((f64::from(found.variance[0]) / var - 1.0).abs() < 1e-6, "{shift} {first}");
        }
        Ok(())
    }

    #[test]
    fn evaluation_uses_the_given_statistics_and_refuses_gradients() -> Result<()> {
        let x = Var::from_vec(vec![1.0f32, -5.0], (2, 1), &Device::Cpu)?;
        let t = |v: f32| tensor(vec![v], 1);
        let (gamma, beta, mean, variance) = (t(2.0)?, t(0.5)?, t(-1.0)?, t(4.0)?);
        let running = RunningStatistics { mean: &mean, variance: &variance };
        let y = batch_norm_running(&x, [&gamma, &beta], None, Activation::Relu, 0.0, running)?;
        assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [2.5, 0.0]);
        assert!(y.sum_all()?.backward().is_err());
        Ok(())
    }

    #[test]
    fn one_value_per_channel_is_refused() -> Result<()> {
        let one = tensor(vec![1.0], 1)?;
        let x = tensor(vec![1.0], (1, 1))?;
        assert!(batch_norm(&x, [&one, &one], None, Activation::Identity, 1e-5).is_err());
        Ok(())
    }

    #[test]
    fn bits_do_not_depend_on_the_number_of_threads() {
        let run = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let x = tensor(values("x", 0, 1001 * 5), (1001, 5)).unwrap();
                let x = Var::from_tensor(&x).unwrap();
                let affine = tensor(values("affine", 0, 5), 5).unwrap();
                let (y, _) =
                    batch_norm(&x, [&affine, &affine], None, Activation::Relu, 1e-5).unwrap();
                let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
                let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                (flat(&y), flat(grads.get(&x).unwrap()))
            })
        };
        assert!(run(1) == run(3));
    }
}
