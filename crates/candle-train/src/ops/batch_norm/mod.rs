//! Batch normalisation over the last axis, fused with a residual and a rectifier.
//!
//! Rows are all axes but the last.

mod sync;
mod channel_norm;
mod on_cpu;
#[cfg(feature = "cuda")]
mod on_gpu;

use candle_core::{Result, Tensor, Var, bail};

use super::chain;
use super::half_precision::with_type_of;
use super::operation::Backward;
use super::storage::read_numbers;
use super::weight::{Destination, Weight};
pub(super) use channel_norm::{
    ROWS, add_gradients, input_gradient_in_place, moments, near_moments, normalised,
};
pub(super) use on_cpu::HostNorm;
#[cfg(feature = "cuda")]
pub(super) use on_gpu::DeviceNorm;
pub(super) use sync::Moments;
pub use sync::{BatchGroup, SyncGroup};

/// Activation after the normalisation (and the residual).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Identity,
    /// max(y, 0), with gradient 0 at 0.
    Relu,
}

/// Statistics of one batch, one entry per channel.
#[derive(Clone, Debug)]
pub struct BatchStatistics {
    /// Mean.
    pub mean: Vec<f32>,
    /// Biased variance: squared deviations divided by the number of rows.
    pub variance: Vec<f32>,
    /// Values per channel.
    pub rows: usize,
    /// Mean and variance of a batch on a GPU, (c) f32 each; the vectors are empty then.
    #[cfg(feature = "cuda")]
    pub on_gpu: Option<[Tensor; 2]>,
}

impl BatchStatistics {
    /// Statistics in the CPU's memory.
    pub(super) fn new(mean: Vec<f32>, variance: Vec<f32>, rows: usize) -> Self {
        Self {
            mean,
            variance,
            rows,
            #[cfg(feature = "cuda")]
            on_gpu: None,
        }
    }

    /// Statistics in a GPU's memory.
    #[cfg(feature = "cuda")]
    pub(super) fn on_gpu(columns: [Tensor; 2], rows: usize) -> Self {
        Self { mean: Vec::new(), variance: Vec::new(), rows, on_gpu: Some(columns) }
    }

    /// 1 / sqrt(variance + eps).
    pub(super) fn inverse_std(&self, eps: f64) -> Vec<f32> {
        self.variance.iter().map(|v| (1.0 / (f64::from(*v) + eps).sqrt()) as f32).collect()
    }

    /// Moves `running` mean and variance towards these by the share `momentum`; the variance is
    /// made unbiased. Channels whose statistics are not finite stay as they are: the step of such a
    /// batch may be skipped, and a running statistic that is NaN once is so for ever.
    pub fn move_running(&self, running: [&Var; 2], momentum: f64) -> Result<()> {
        let unbiased = self.rows as f64 / (self.rows as f64 - 1.0);
        #[cfg(feature = "cuda")]
        if let Some(columns) = &self.on_gpu {
            return on_gpu::move_running(running, columns, [1.0, unbiased], momentum);
        }
        let [mean, variance] = running;
        move_towards(mean, [&self.mean, &self.variance], momentum, 1.0)?;
        move_towards(variance, [&self.variance, &self.mean], momentum, unbiased)
    }
}

/// running = (1 - momentum) running + momentum scale value, where the value and the other statistic
/// of its channel are finite.
fn move_towards(
    running: &Var,
    [values, others]: [&[f32]; 2],
    momentum: f64,
    scale: f64,
) -> Result<()> {
    let moved = |(old, (value, other)): (f32, (&f32, &f32))| {
        if !value.is_finite() || !other.is_finite() {
            return old;
        }
        ((1.0 - momentum) * f64::from(old) + momentum * scale * f64::from(*value)) as f32
    };
    let before: Vec<f32> = running.to_vec1()?;
    let moved: Vec<f32> = before.into_iter().zip(values.iter().zip(others)).map(moved).collect();
    running.set(&Tensor::new(moved, running.device())?)
}

/// Statistics of the training data, for evaluation; (c) f32 each.
#[derive(Clone, Copy)]
pub struct RunningStatistics<'a> {
    /// Mean.
    pub mean: &'a Tensor,
    /// Variance.
    pub variance: &'a Tensor,
}

/// activation(gamma (x - mean) / sqrt(variance + eps) + beta + residual) with the statistics of
/// this batch, which are returned too (Ioffe and Szegedy, 2015). x and residual (..., c), gamma and
/// beta (c), f32. x and residual may be in half precision, on the CPU in bf16; the result has the
/// type of x.
///
/// # Errors
///
/// One value per channel, as in PyTorch, shapes that do not fit, or a beta of Candle's graph: it
/// must be [`Weight::learnt`].
pub fn batch_norm(
    x: &Tensor,
    affine: [&Weight; 2],
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
) -> Result<(Tensor, BatchStatistics)> {
    sync_batch_norm(x, affine, residual, activation, eps, None)
}

/// [`batch_norm`]; with a `group`, with the statistics of the batch that this is a part of
/// (`torch.nn.SyncBatchNorm`), whose other parts the group asks, in forward and in backward. The
/// gradients of gamma and beta are those of this part.
pub fn sync_batch_norm(
    x: &Tensor,
    [gamma, beta]: [&Weight; 2],
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
    group: Option<&BatchGroup>,
) -> Result<(Tensor, BatchStatistics)> {
    let x = x.contiguous()?;
    let c = check(&x, [gamma, beta], residual)?;
    let gamma = &gamma.reachable([Some(&x), residual], [gamma, beta])?;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        return on_gpu::batch_norm(&x, [gamma, beta], residual, activation, eps, group);
    }
    let moments = read_numbers([&x], |[x]| Ok(moments(x, c)))?;
    let (norm, statistics) = HostNorm::of_batch(moments, group, eps, beta, activation)?;
    Ok((apply(&x, gamma, residual, norm)?, statistics))
}

/// [`batch_norm`] with the statistics of the training data. Asking for its gradient is an error.
pub fn batch_norm_running(
    x: &Tensor,
    [gamma, beta]: [&Weight; 2],
    residual: Option<&Tensor>,
    activation: Activation,
    eps: f64,
    running: RunningStatistics<'_>,
) -> Result<Tensor> {
    let x = x.contiguous()?;
    check(&x, [gamma, beta], residual)?;
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let affine = [gamma, beta];
        return on_gpu::batch_norm_running(&x, affine, residual, activation, eps, running);
    }
    apply(&x, gamma, residual, HostNorm::running(running, eps, beta, activation)?)
}

fn check(x: &Tensor, affine: [&Weight; 2], residual: Option<&Tensor>) -> Result<usize> {
    let c = x.dims().last().copied().unwrap_or(0);
    if c == 0 || affine.iter().any(|weight| weight.tensor().dims() != [c]) {
        bail!("batch normalisation of {:?} with weights {:?}", x.dims(), affine[0].tensor().dims());
    }
    match residual {
        Some(residual) if residual.dims() != x.dims() => {
            bail!("a residual {:?} for {:?}", residual.dims(), x.dims())
        }
        _ => Ok(c),
    }
}

fn apply(x: &Tensor, gamma: &Weight, residual: Option<&Tensor>, norm: HostNorm) -> Result<Tensor> {
    let node = Node { norm, d_gamma: gamma.destination() };
    let gamma = gamma.tensor();
    let residual = residual.map(Tensor::contiguous).transpose()?;
    let y = read_numbers([x], |[x]| node.norm.output(x, gamma, residual.as_ref()))?;
    let operands: Vec<&Tensor> = [x, gamma].into_iter().chain(&residual).collect();
    chain::node(&operands, (y.storage(), x.shape().clone()), Box::new(node))
}

struct Node {
    norm: HostNorm,
    d_gamma: Destination,
}

impl Backward for Node {
    fn name(&self) -> &'static str {
        "batch-norm"
    }

    fn backward(
        &self,
        operands: &[&Tensor],
        y: &Tensor,
        dy: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let [x, gamma, residual @ ..] = operands else {
            bail!("{} of {} operands", self.name(), operands.len())
        };
        let residual = residual.first();
        let dy = dy.contiguous()?;
        let y = residual.map(|_| y);
        let (of_gamma, dx) = read_numbers([x], |[x]| self.norm.backward(x, gamma, y, &dy))?;
        let of_residual = residual.map(|residual| with_type_of(&dy, residual)).transpose()?;
        Ok(vec![Some(dx.unwrap_or(dy)), self.d_gamma.send(of_gamma, gamma)?, of_residual])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Var};
    use half::bf16;
    use proptest::prelude::*;
    use test_support::assert_refused;

    use super::super::storage::tensor;
    use super::super::testing::{check_weights, flat, on_threads, values};
    use super::super::widen;
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
                check_weights(
                    &[&x, &affine, &affine],
                    |t| Ok(batch_norm(t[0].tensor(), [&t[1], &t[2]], None, activation, 1e-5)?.0),
                    |v| slow(v, None, activation),
                    1e-4,
                );
                check_weights(
                    &[&x, &affine, &affine, &x],
                    |t| {
                        Ok(batch_norm(
                            t[0].tensor(),
                            [&t[1], &t[2]],
                            Some(t[3].tensor()),
                            activation,
                            1e-5,
                        )?
                        .0)
                    },
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
            let one = Weight::from(&tensor(vec![1.0], 1)?);
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
        let (gamma, beta) = (Weight::from(&t(2.0)?), Weight::from(&t(0.5)?));
        let (mean, variance) = (t(-1.0)?, t(4.0)?);
        let running = RunningStatistics { mean: &mean, variance: &variance };
        let y = batch_norm_running(&x, [&gamma, &beta], None, Activation::Relu, 0.0, running)?;
        assert_eq!(y.flatten_all()?.to_vec1::<f32>()?, [2.5, 0.0]);
        assert_refused(
            y.sum_all()?.backward(),
            "no gradient flows through a batch norm that is being evaluated",
        );
        let x = x.to_dtype(DType::BF16)?;
        let y = batch_norm_running(&x, [&gamma, &beta], None, Activation::Relu, 0.0, running)?;
        assert_eq!(y.flatten_all()?.to_vec1::<bf16>()?, [2.5, 0.0].map(bf16::from_f32));
        Ok(())
    }

    #[test]
    fn bf16_is_normalised_as_the_same_numbers_in_f32() -> Result<()> {
        let weight = Weight::from(&tensor(vec![1.5; 3], 3)?);
        let halves = |name| tensor(values(name, 0, 60), (20, 3))?.to_dtype(DType::BF16);
        let (x, r) = (halves("bf16")?, halves("r")?.to_dtype(DType::F32)?);
        let added = halves("residual")?;
        let normalised = |dtype, residual: Option<DType>| {
            let x = Var::from_tensor(&x.to_dtype(dtype)?)?;
            let residual = residual.map(|dtype| Var::from_tensor(&added.to_dtype(dtype)?));
            let residual = residual.transpose()?;
            let added = residual.as_deref();
            let (y, _) = batch_norm(&x, [&weight, &weight], added, Activation::Relu, 1e-5)?;
            let gradients = widen(&y)?.mul(&r)?.sum_all()?.backward()?;
            let flat = |t: &Tensor| t.to_dtype(DType::BF16)?.flatten_all()?.to_vec1::<bf16>();
            let mut all = vec![flat(&y)?];
            for operand in [Some(&x), residual.as_ref()].into_iter().flatten() {
                let gradient = gradients.get(operand).unwrap();
                assert_eq!((y.dtype(), gradient.dtype()), (dtype, operand.dtype()));
                all.push(flat(gradient)?);
            }
            Ok::<_, candle_core::Error>(all)
        };
        let (half, wide) = (DType::BF16, DType::F32);
        assert_eq!(normalised(half, None)?, normalised(wide, None)?);
        let expected = normalised(wide, Some(wide))?;
        for (x, residual) in [(half, half), (half, wide), (wide, half)] {
            assert_eq!(normalised(x, Some(residual))?, expected, "{x:?} {residual:?}");
        }
        Ok(())
    }

    #[test]
    fn one_value_per_channel_is_refused() -> Result<()> {
        let one = Weight::from(&tensor(vec![1.0], 1)?);
        let refused = |x: &Tensor| {
            let found = batch_norm(x, [&one, &one], None, Activation::Identity, 1e-5);
            found.err().map(|error| error.to_string())
        };
        let why = refused(&tensor(vec![1.0], (1, 1))?).unwrap();
        assert!(why.contains("more than one value per channel to train, got 1"), "{why}");
        // Of an image, too; two values are enough.
        let why = refused(&tensor(vec![1.0], (1, 1, 1, 1))?).unwrap();
        assert!(why.contains("more than one value per channel to train, got 1"), "{why}");
        assert_eq!(refused(&tensor(vec![1.0, 2.0], (2, 1))?), None);
        Ok(())
    }

    /// Output, gradient of x and gradient of the residual.
    fn bits(threads: usize) -> [Vec<f32>; 3] {
        on_threads(threads, || {
            let var = |name: &str, n: usize, shape: &[usize]| {
                Var::from_vec(values(name, 0, n), shape, &Device::Cpu).unwrap()
            };
            let (x, residual) = (var("x", 5005, &[1001, 5]), var("residual", 5005, &[1001, 5]));
            let affine = Weight::from(&tensor(values("affine", 0, 5), 5).unwrap());
            let affine = [&affine, &affine];
            let (h, _) = batch_norm(&x, affine, None, Activation::Relu, 1e-5).unwrap();
            let (y, _) = batch_norm(&h, affine, Some(&residual), Activation::Relu, 1e-5).unwrap();
            let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            [flat(&y), flat(grads.get(&x).unwrap()), flat(grads.get(&residual).unwrap())]
        })
    }

    #[test]
    fn bits_do_not_depend_on_the_number_of_threads() {
        assert!(bits(1) == bits(2));
        assert!(bits(1) == bits(3));
    }

    #[test]
    fn a_gradient_that_another_branch_shares_is_not_overwritten() -> Result<()> {
        let var = |salt| Var::from_vec(values("shared", salt, 12), (4, 3), &Device::Cpu);
        let (x, other) = (var(0)?, var(1)?);
        let one = Weight::from(&tensor(vec![1.0; 3], 3)?);
        for residual in [None, Some(other.as_tensor())] {
            let (y, _) = batch_norm(&x, [&one, &one], residual, Activation::Identity, 1e-5)?;
            // An addition hands the same gradient, here 3, to both of its operands.
            let sum = [(&y + other.as_tensor())?, (other.as_tensor() + &y)?];
            for sum in sum {
                let grads = (sum * 3.0)?.sum_all()?.backward()?;
                let of_other = grads.get(&other).unwrap().flatten_all()?.to_vec1::<f32>()?;
                assert_eq!(of_other, [if residual.is_some() { 6.0 } else { 3.0 }; 12]);
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn statistics_and_outputs_are_close_to_f64_for_any_shape(
            rows in 2usize..700, c in 1usize..150, relu: bool
        ) {
            let x = values("any", rows as u64, rows * c);
            let exact: Vec<Vec<f64>> = [x.clone(), vec![1.0; c], vec![0.5; c]]
                .iter()
                .map(|values| values.iter().map(|&v| f64::from(v)).collect())
                .collect();
            let activation = if relu { Activation::Relu } else { Activation::Identity };
            let weight = |value: f32| Weight::from(&tensor(vec![value; c], c).unwrap());
            let (gamma, beta) = (weight(1.0), weight(0.5));
            let x = tensor(x, (rows, c)).unwrap();
            let (y, _) = batch_norm(&x, [&gamma, &beta], None, activation, 1e-5).unwrap();
            let y = y.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let error = y.iter().zip(slow(&exact, None, activation))
                .map(|(y, exact)| (f64::from(*y) - exact).abs())
                .fold(0.0, f64::max);
            println!("batch norm of ({rows}, {c}): error against f64 {error:.1e}");
            prop_assert!(error < 3e-5);
        }
    }
}
