//! The loss of `TimeBridge`: errors over time and errors of the Fourier coefficients, together.
//!
//! Half the spectrum of a real series is one product with a constant matrix of cosines and sines,
//! exactly `torch.fft.rfft` without normalisation; its length, not its speed, is what forecasts
//! have.

use std::f64::consts::TAU;

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
use super::kernel::{Matrix, Sums, Write, multiplied, multiply};
use super::layout::transposed;
use super::operation::{Gradients, Input, Operation};
use super::simd::{BLOCK, build, build_rows, change_blocks, change_rows};
use super::storage::{read, tensor};

/// `(1 - alpha)` times the mean absolute error, plus `alpha` times the mean of the differences'
/// absolute Fourier coefficients over time; both (n, time steps, series), f32 -> scalar. The
/// gradient of a coefficient or a difference that is 0 is 0.
pub fn time_frequency(prediction: &Tensor, target: &Tensor, alpha: f64) -> Result<Tensor> {
    let (n, steps, series) = prediction.dims3()?;
    if prediction.dims() != target.dims() || prediction.elem_count() == 0 {
        bail!("predictions {:?} for targets {:?}", prediction.dims(), target.dims());
    }
    let op = TimeFrequency { n, steps, series, alpha };
    chain::apply([prediction, target], op)
}

pub(super) struct TimeFrequency {
    pub(super) n: usize,
    pub(super) steps: usize,
    pub(super) series: usize,
    alpha: f64,
}

impl TimeFrequency {
    /// Coefficients of a series: real and imaginary parts one after the other.
    pub(super) fn width(&self) -> usize {
        2 * (self.steps / 2 + 1)
    }

    /// (time steps, width): the cosines of all frequencies, then the negative sines.
    pub(super) fn basis(&self) -> Vec<f32> {
        let steps = self.steps;
        let frequencies = self.width() / 2;
        // They have as many values as a turn has steps.
        let angle = |step: usize| TAU * step as f64 / steps as f64;
        let turn: Vec<[f32; 2]> =
            (0..steps).map(|step| [angle(step).cos() as f32, -angle(step).sin() as f32]).collect();
        build_rows(steps * self.width(), self.width(), |start, rows| {
            for (i, row) in rows.chunks_exact_mut(2 * frequencies).enumerate() {
                let (t, (cosines, sines)) =
                    (start / (2 * frequencies) + i, row.split_at_mut(frequencies));
                for (f, (cosine, sine)) in cosines.iter_mut().zip(sines).enumerate() {
                    [*cosine, *sine] = turn[t * f % steps];
                }
            }
        })
    }

    /// The differences of each series in a row of its own: (n series, time steps).
    fn differences(&self, p: &[f32], t: &[f32]) -> Vec<f32> {
        let differences = build(p.len(), |start, block| {
            let pairs = p[start..].iter().zip(&t[start..]);
            for (difference, (p, t)) in block.iter_mut().zip(pairs) {
                *difference = p - t;
            }
        });
        transposed(&differences, self.steps, self.series)
    }

    /// (n series, width)
    fn spectrum(&self, differences: &[f32], basis: &[f32]) -> Vec<f32> {
        let differences = Matrix::new(differences, self.n * self.series, self.steps);
        multiplied(differences, Matrix::new(basis, self.steps, self.width()), Sums::Long)
    }

    /// Weight of one difference and of one coefficient.
    pub(super) fn weights(&self) -> (f64, f64) {
        let rows = (self.n * self.series) as f64;
        let time = (1.0 - self.alpha) / (rows * self.steps as f64);
        (time, self.alpha / (rows * (self.width() / 2) as f64))
    }

    fn loss(&self, p: &[f32], t: &[f32]) -> f64 {
        let differences = self.differences(p, t);
        let spectrum = self.spectrum(&differences, &self.basis());
        let time =
            summed(&differences, BLOCK, |block| block.iter().map(|&d| f64::from(d).abs()).sum());
        let frequency = summed(&spectrum, self.width(), |row| {
            let (re, im) = row.split_at(self.width() / 2);
            re.iter().zip(im).map(|(&re, &im)| length(re, im)).sum()
        });
        let (of_time, of_frequency) = self.weights();
        of_time * time + of_frequency * frequency
    }

    /// Gradient of the prediction, times `scale`.
    fn gradient(&self, p: &[f32], t: &[f32], scale: f64) -> Vec<f32> {
        let basis = self.basis();
        let differences = self.differences(p, t);
        let (of_time, of_frequency) = self.weights();
        let mut slopes = self.spectrum(&differences, &basis);
        let width = self.width();
        change_rows(&mut slopes, width, |_, rows| {
            for row in rows.chunks_exact_mut(width) {
                let (re, im) = row.split_at_mut(width / 2);
                for (re, im) in re.iter_mut().zip(im) {
                    let length = length(*re, *im) as f32;
                    let factor = (scale * of_frequency) as f32 / length;
                    let is_zero = length == 0.0;
                    (*re, *im) = if is_zero { (0.0, 0.0) } else { (*re * factor, *im * factor) };
                }
            }
        });
        let rows = self.n * self.series;
        let mut by_series = differences;
        change_blocks(&mut by_series, |_, block| {
            for d in block {
                *d = (scale * of_time) as f32 * if *d == 0.0 { 0.0 } else { d.signum() };
            }
        });
        let back = Matrix::new(&basis, self.steps, self.width()).transposed().panels();
        let slopes = Matrix::new(&slopes, rows, self.width());
        multiply(&mut by_series, slopes, &back, Write::Add, Sums::Long);
        transposed(&by_series, self.series, self.steps)
    }
}

/// Absolute value of a complex number; squares of f32 numbers do not overflow f64 ones.
fn length(re: f32, im: f32) -> f64 {
    let [re, im] = [re, im].map(f64::from);
    (re * re + im * im).sqrt()
}

/// The sum of `f` of blocks of `block` values, in their order.
fn summed(values: &[f32], block: usize, f: impl Fn(&[f32]) -> f64 + Sync) -> f64 {
    values.par_chunks(block.max(1)).map(&f).collect::<Vec<f64>>().into_iter().sum()
}

impl Operation for TimeFrequency {
    type Operands<T> = [T; 2];

    const NAME: &'static str = "time-frequency-loss";

    fn forward(&self, [p, t]: [Input<'_>; 2]) -> Result<(Vec<f32>, Shape)> {
        Ok((vec![self.loss(p.values, t.values) as f32], ().into()))
    }

    fn backward(
        &self,
        [prediction, target]: [&Tensor; 2],
        _: &Tensor,
        dy: Tensor,
    ) -> Gradients<Self> {
        let scale = f64::from(dy.to_scalar::<f32>()?);
        let gradient = read([prediction, target], |[p, t]| {
            tensor(self.gradient(p, t, scale), prediction.shape())
        })?;
        both_signs(gradient, target)
    }
}

/// The gradient of a prediction, and that of its target, if one is wanted.
pub(super) fn both_signs(gradient: Tensor, target: &Tensor) -> Result<[Option<Tensor>; 2]> {
    let of_target = if target.track_op() { Some(gradient.neg()?) } else { None };
    Ok([Some(gradient), of_target])
}

#[cfg(test)]
mod tests {
    use candle_core::Var;
    use test_support::assert_refused;

    use super::super::testing::check_gradients;
    use super::*;

    /// The definition, in f64, for 2 samples of 3 series.
    fn slow(p: &[f64], t: &[f64], steps: usize, alpha: f64) -> Vec<f64> {
        let d: Vec<f64> = p.iter().zip(t).map(|(p, t)| p - t).collect();
        let time = d.iter().map(|d| d.abs()).sum::<f64>() / d.len() as f64;
        let frequencies = steps / 2 + 1;
        let mut sum = 0.0;
        for (sample, series) in (0..2).flat_map(|sample| (0..3).map(move |s| (sample, s))) {
            for f in 0..frequencies {
                let part = |wave: fn(f64) -> f64| -> f64 {
                    let angle = |step| TAU * (step * f) as f64 / steps as f64;
                    (0..steps).map(|k| d[(sample * steps + k) * 3 + series] * wave(angle(k))).sum()
                };
                sum += part(f64::cos).hypot(part(f64::sin));
            }
        }
        vec![(1.0 - alpha) * time + alpha * sum / (6 * frequencies) as f64]
    }

    #[test]
    fn loss_and_gradients_equal_the_slow_ones_for_even_and_odd_lengths() {
        for steps in [1, 5, 8] {
            let shape: [&[usize]; 2] = [&[2, steps, 3], &[2, steps, 3]];
            let fast = |t: &[Tensor]| time_frequency(&t[0], &t[1], 0.35);
            check_gradients(&shape, fast, |v| slow(&v[0], &v[1], steps, 0.35), 1e-6);
        }
    }

    #[test]
    fn a_perfect_forecast_has_no_gradient_and_a_broken_one_is_not_hidden() -> Result<()> {
        let target = tensor(vec![0.5; 12], (2, 2, 3))?;
        let perfect = Var::from_tensor(&target)?;
        let loss = time_frequency(&perfect, &target, 0.35)?;
        let gradients = loss.backward()?;
        let gradient = gradients.get(&perfect).map(Tensor::flatten_all).transpose()?;
        assert_eq!(gradient.map(|g| g.to_vec1::<f32>()).transpose()?, Some(vec![0.0; 12]));
        let broken = tensor(vec![f32::NAN; 12], (2, 2, 3))?;
        assert!(time_frequency(&broken, &target, 0.35)?.to_scalar::<f32>()?.is_nan());
        assert_refused(
            time_frequency(&target.flatten_all()?, &target, 0.35),
            "unexpected rank, expected: 3, got: 1",
        );
        Ok(())
    }
}
