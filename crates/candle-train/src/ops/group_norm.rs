//! Group normalisation, channels last.

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::batch_norm::{ROWS, add_gradients, input_gradient_in_place, moments, normalised};
use super::chain;
use super::operation::{Gradients, Input, Operation};
use super::scratch::zeros;
use super::simd::vectorised;
use super::storage::{overwrite, read};
use super::weight::{Destination, Weight};

/// gamma (x - mean) / sqrt(variance + eps) + beta, with the mean and the biased variance over all
/// positions and the channels of one group, for each sample (Wu and He, 2018), as
/// `torch.nn.GroupNorm`. x (n, ..., c) with `groups` dividing c, gamma and beta (c), f32.
pub fn group_norm(
    x: &Tensor,
    [gamma, beta]: [&Weight; 2],
    groups: usize,
    eps: f64,
) -> Result<Tensor> {
    let (n, c) = match x.dims() {
        [n, .., c] if groups > 0 && *c > 0 && c.is_multiple_of(groups) => (*n, *c),
        dims => bail!("normalisation of {dims:?} in {groups} groups of channels"),
    };
    if [gamma, beta].iter().any(|weight| weight.tensor().dims() != [c]) {
        bail!("group normalisation of {:?} with weights {:?}", x.dims(), gamma.tensor().dims());
    }
    let destinations = [gamma.destination(), beta.destination()];
    let op = GroupNorm { sample: x.elem_count() / n.max(1), groups, eps, destinations };
    chain::apply([x, gamma.tensor(), beta.tensor()], op)
}

pub(super) struct GroupNorm {
    /// Values of one sample.
    pub(super) sample: usize,
    pub(super) groups: usize,
    pub(super) eps: f64,
    /// Destinations of the gradients of gamma and beta.
    pub(super) destinations: [Destination; 2],
}

/// Statistics of each channel of one sample: those of the channel's group.
struct Statistics {
    mean: Vec<f32>,
    inverse_std: Vec<f32>,
}

impl GroupNorm {
    /// The statistics of the channels are exact to f32; a group merges those of its channels.
    fn statistics(&self, x: &[f32], c: usize) -> Statistics {
        let channels = moments(x.into(), c).statistics();
        let per_group = c / self.groups;
        let mut statistics = Statistics { mean: Vec::new(), inverse_std: Vec::new() };
        let parts = channels.mean.chunks(per_group).zip(channels.variance.chunks(per_group));
        for (means, variances) in parts {
            let n = per_group as f64;
            let mean = means.iter().map(|&mean| f64::from(mean)).sum::<f64>() / n;
            let spread = means.iter().zip(variances).map(|(channel_mean, variance)| {
                f64::from(*variance) + (f64::from(*channel_mean) - mean).powi(2)
            });
            let inverse_std = 1.0 / (spread.sum::<f64>() / n + self.eps).sqrt();
            statistics.mean.extend(vec![mean as f32; per_group]);
            statistics.inverse_std.extend(vec![inverse_std as f32; per_group]);
        }
        statistics
    }

    fn values(&self, x: &[f32], gamma: &[f32], beta: &[f32]) -> Vec<f32> {
        let c = gamma.len();
        let mut y = zeros(x.len());
        let samples = y.par_chunks_mut(self.sample.max(1)).zip(x.par_chunks(self.sample.max(1)));
        samples.for_each(|(y, x)| {
            let Statistics { mean, inverse_std } = self.statistics(x, c);
            let scale: Vec<f32> = gamma.iter().zip(inverse_std).map(|(g, s)| g * s).collect();
            vectorised(
                #[inline(always)]
                || {
                    for (y, x) in y.chunks_exact_mut(c).zip(x.chunks_exact(c)) {
                        let constants = mean.iter().zip(&scale).zip(beta);
                        for ((y, x), ((mean, scale), beta)) in y.iter_mut().zip(x).zip(constants) {
                            *y = normalised(*x, *mean, *scale, *beta);
                        }
                    }
                },
            );
        });
        y
    }

    /// Replaces dy by the gradient of x; returns those of gamma, then beta, that this sample adds.
    fn pull(&self, x: &[f32], gamma: &[f32], dy: &mut [f32]) -> Vec<f64> {
        let c = gamma.len();
        let Statistics { mean, inverse_std } = self.statistics(x, c);
        let mut sums = vec![0f64; 2 * c];
        for (dy, x) in dy.chunks(ROWS * c).zip(x.chunks(ROWS * c)) {
            let mut block = vec![0f32; 2 * c];
            let (weighted, plain) = block.split_at_mut(c);
            vectorised(
                #[inline(always)]
                || add_gradients(plain, weighted, dy, x, &mean),
            );
            sums.iter_mut().zip(block).for_each(|(sum, part)| *sum += f64::from(part));
        }
        let (weighted, plain) = sums.split_at_mut(c);
        weighted.iter_mut().zip(&inverse_std).for_each(|(sum, s)| *sum *= f64::from(*s));
        let [slope, shift] = self.slopes(gamma, &inverse_std, weighted, plain);
        let scale: Vec<f32> = gamma.iter().zip(&inverse_std).map(|(g, s)| g * s).collect();
        vectorised(
            #[inline(always)]
            || {
                for (dy, x) in dy.chunks_exact_mut(c).zip(x.chunks_exact(c)) {
                    input_gradient_in_place(dy, x, [&scale, &mean, &slope, &shift]);
                }
            },
        );
        sums
    }

    /// dx = (g - mean(g) - x̂ mean(g x̂)) / std with g = gamma dy and means over the group, as
    /// scale dy + slope (x - mean) + shift: slope and shift of each channel.
    fn slopes(
        &self,
        gamma: &[f32],
        inverse_std: &[f32],
        weighted: &[f64],
        plain: &[f64],
    ) -> [Vec<f32>; 2] {
        let per_group = gamma.len() / self.groups;
        let n = (self.sample / self.groups) as f64;
        let slope_of = |sums: &[f64], channel: usize, power: i32| {
            let group = channel / per_group * per_group..(channel / per_group + 1) * per_group;
            let sum: f64 = group.map(|i| f64::from(gamma[i]) * sums[i]).sum();
            (-f64::from(inverse_std[channel]).powi(power) * sum / n) as f32
        };
        let channels = 0..gamma.len();
        [
            channels.clone().map(|channel| slope_of(weighted, channel, 2)).collect(),
            channels.map(|channel| slope_of(plain, channel, 1)).collect(),
        ]
    }
}

impl Operation for GroupNorm {
    type Operands<T> = [T; 3];

    const NAME: &'static str = "group-norm";

    fn forward(&self, [x, gamma, beta]: [Input<'_>; 3]) -> Result<(Vec<f32>, Shape)> {
        Ok((self.values(x.values, gamma.values, beta.values), x.shape.clone()))
    }

    fn backward(&self, [x, gamma, beta]: [&Tensor; 3], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let c = gamma.elem_count();
        let samples: Vec<Vec<f64>> = read([x, gamma], |[x, gamma]| {
            overwrite(&dy, |dy| {
                let samples = dy.par_chunks_mut(self.sample).zip(x.par_chunks(self.sample));
                samples.map(|(dy, x)| self.pull(x, gamma, dy)).collect()
            })
        })?;
        let mut total = vec![0f64; 2 * c];
        for sums in samples {
            total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
        let part = |values: &[f64]| values.iter().map(|&v| v as f32).collect();
        let [to_gamma, to_beta] = &self.destinations;
        // The shift's leaves first: it was registered last.
        let of_beta = to_beta.send(part(&total[c..]), beta)?;
        Ok([Some(dy), to_gamma.send(part(&total[..c]), gamma)?, of_beta])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use proptest::prelude::*;
    use test_support::assert_refused;

    use super::super::storage::tensor;
    use super::super::testing::{check_weights, flat, on_threads, values};
    use super::*;

    fn slow(v: &[Vec<f64>], sample: usize, groups: usize) -> Vec<f64> {
        let (gamma, beta) = (&v[1], &v[2]);
        let c = gamma.len();
        let per_group = c / groups;
        let mut y = v[0].clone();
        for sample in y.chunks_mut(sample) {
            let x = sample.to_vec();
            for group in 0..groups {
                let of_group = |i: &usize| i % c / per_group == group;
                let at: Vec<usize> = (0..x.len()).filter(of_group).collect();
                let n = at.len() as f64;
                let mean = at.iter().map(|&i| x[i]).sum::<f64>() / n;
                let variance = at.iter().map(|&i| (x[i] - mean).powi(2)).sum::<f64>() / n;
                for i in at {
                    sample[i] =
                        gamma[i % c] * (x[i] - mean) / (variance + 1e-5).sqrt() + beta[i % c];
                }
            }
        }
        y
    }

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for (n, positions, c, groups) in
            [(1, 2, 1, 1), (2, 3, 6, 3), (3, 1, 8, 2), (2, 5, 7, 1), (1, 140, 2, 2)]
        {
            check_weights(
                &[&[n, positions, c], &[c], &[c]],
                |t| group_norm(t[0].tensor(), [&t[1], &t[2]], groups, 1e-5),
                |v| slow(v, positions * c, groups),
                1e-4,
            );
        }
    }

    #[test]
    fn groups_must_divide_the_channels() -> Result<()> {
        let x = tensor(vec![1.0; 12], (2, 6))?;
        let affine = Weight::from(&tensor(vec![1.0; 6], 6)?);
        assert_refused(group_norm(&x, [&affine, &affine], 4, 1e-5), "in 4 groups of channels");
        assert_refused(group_norm(&x, [&affine, &affine], 0, 1e-5), "in 0 groups of channels");
        assert_refused(
            group_norm(&x, [&affine, &Weight::from(&x)], 3, 1e-5),
            "group normalisation of [2, 6] with weights [6]",
        );
        Ok(())
    }

    #[test]
    fn bits_do_not_depend_on_the_number_of_threads() {
        let run = |threads| {
            on_threads(threads, || {
                let var = |name: &str, n: usize, shape: &[usize]| {
                    Var::from_vec(values(name, 0, n), shape, &Device::Cpu).unwrap()
                };
                let (x, gamma) = (var("x", 7 * 150 * 6, &[7, 150, 6]), var("gamma", 6, &[6]));
                let weight = Weight::from(gamma.as_tensor());
                let y = group_norm(&x, [&weight, &weight], 3, 1e-5).unwrap();
                let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
                [flat(&y), flat(grads.get(&x).unwrap()), flat(grads.get(&gamma).unwrap())]
            })
        };
        assert!(run(1) == run(2) && run(1) == run(3));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn outputs_are_close_to_f64_for_any_shape(
            n in 1usize..4, positions in 1usize..200, groups in 1usize..6, per_group in 1usize..8
        ) {
            let c = groups * per_group;
            let x = values("any", c as u64, n * positions * c);
            let exact: Vec<Vec<f64>> = [x.clone(), vec![1.0; c], vec![0.5; c]]
                .iter()
                .map(|values| values.iter().map(|&v| f64::from(v)).collect())
                .collect();
            let x = tensor(x, (n, positions, c)).unwrap();
            let weight = |value: f32| Weight::from(&tensor(vec![value; c], c).unwrap());
            let (gamma, beta) = (weight(1.0), weight(0.5));
            let y = group_norm(&x, [&gamma, &beta], groups, 1e-5).unwrap();
            let y = y.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let error = y.iter().zip(slow(&exact, positions * c, groups))
                .map(|(y, exact)| (f64::from(*y) - exact).abs())
                .fold(0.0, f64::max);
            println!("group norm of ({n}, {positions}, {c}): error against f64 {error:.1e}");
            prop_assert!(error < 3e-5);
        }
    }
}
