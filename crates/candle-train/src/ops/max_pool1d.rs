//! Largest values of windows over sequences, NLC.

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
use super::conv::{Window, output_size};
use super::operation::{Gradients, Input, Kept, Operation};
use super::scratch::zeros;
use super::storage::{read, tensor};

/// Largest value of each window: (n, l, c) -> (n, ol, c), f32. Padding counts as minus infinity;
/// the gradient goes to the first maximum of a window, and NaN wins over numbers, as in
/// `torch.nn.functional.max_pool1d`.
///
/// # Errors
///
/// A window that does not fit, padding of more than half of it, or not on the CPU.
pub fn max_pool1d(x: &Tensor, kernel: usize, window: Window) -> Result<Tensor> {
    let (n, l, c) = x.dims3()?;
    if window.padding * 2 > kernel {
        bail!("pooling pads by {}, its window is {kernel} wide", window.padding);
    }
    let steps = output_size(l, kernel, window.stride, window.padding)?;
    chain::apply(
        [x],
        MaxPool1d { sizes: [n, l, c], kernel, window, steps, chosen: Kept::default() },
    )
}

pub(super) struct MaxPool1d {
    /// Samples, steps and channels of what comes in.
    sizes: [usize; 3],
    kernel: usize,
    window: Window,
    /// Of what goes out.
    steps: usize,
    /// The step of each maximum.
    chosen: Kept<Vec<u32>>,
}

impl MaxPool1d {
    /// Steps that window `at` sees; there is one, since padding is at most half of a window.
    fn seen(&self, at: usize) -> std::ops::Range<usize> {
        let Window { stride, padding } = self.window;
        let first = (at * stride).saturating_sub(padding);
        first..(at * stride + self.kernel).saturating_sub(padding).min(self.sizes[1])
    }
}

impl Operation for MaxPool1d {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "max-pool1d-nlc";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let [n, l, c] = self.sizes;
        let mut y = zeros(n * self.steps * c);
        let mut chosen = vec![0; y.len()];
        let rows = y.par_chunks_mut(c.max(1)).zip(chosen.par_chunks_mut(c.max(1))).enumerate();
        rows.for_each(|(row, (y, chosen))| {
            let sample = &x.values[row / self.steps * l * c..][..l * c];
            let mut seen = self.seen(row % self.steps);
            let first = seen.next().unwrap_or_default();
            y.copy_from_slice(&sample[first * c..][..c]);
            chosen.fill(first as u32);
            for step in seen {
                let values = y.iter_mut().zip(chosen.iter_mut()).zip(&sample[step * c..][..c]);
                for ((best, chosen), value) in values {
                    if *value > *best || (value.is_nan() && !best.is_nan()) {
                        (*best, *chosen) = (*value, step as u32);
                    }
                }
            }
        });
        self.chosen.keep(chosen);
        Ok((y, Shape::from((n, self.steps, c))))
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let Some(chosen) = self.chosen.get() else { bail!("backward before forward") };
        let [_, l, c] = self.sizes;
        let mut dx = zeros(x.elem_count());
        read([&dy], |[dy]| {
            let (sample, made) = ((l * c).max(1), (self.steps * c).max(1));
            let samples = dx.par_chunks_mut(sample).zip(dy.par_chunks(made));
            samples.zip(chosen.par_chunks(made)).for_each(|((dx, dy), chosen)| {
                for (i, (g, step)) in dy.iter().zip(chosen).enumerate() {
                    dx[*step as usize * c + i % c] += g;
                }
            });
            Ok(())
        })?;
        Ok([Some(tensor(dx, x.shape())?)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::super::testing::check_gradients;
    use super::*;

    #[test]
    fn outputs_and_gradients_equal_the_slow_ones() {
        for (kernel, stride, padding) in [(1, 1, 0), (2, 2, 0), (3, 2, 1), (4, 1, 2)] {
            let steps = (7 + 2 * padding - kernel) / stride + 1;
            let slow = |v: &[Vec<f64>]| -> Vec<f64> {
                let largest = |i: usize| {
                    let (c, at, sample) = (i % 3, i / 3 % steps, i / 3 / steps);
                    let places =
                        (at * stride..at * stride + kernel).map(|at| at.wrapping_sub(padding));
                    let values =
                        places.filter(|&at| at < 7).map(|at| v[0][(sample * 7 + at) * 3 + c]);
                    values.fold(f64::NEG_INFINITY, f64::max)
                };
                (0..2 * steps * 3).map(largest).collect()
            };
            let window = Window { stride, padding };
            check_gradients(&[&[2, 7, 3]], |t| max_pool1d(&t[0], kernel, window), slow, 1e-6);
        }
    }

    #[test]
    fn the_first_of_equal_maxima_gets_the_gradient_and_nan_wins() -> Result<()> {
        let x = Var::from_vec(vec![1.0f32, 1.0, f32::NAN, 2.0], (1, 4, 1), &Device::Cpu)?;
        let y = max_pool1d(&x, 2, Window { stride: 2, padding: 0 })?;
        let gradients = y.sum_all()?.backward()?;
        let gradient = gradients.get(&x).unwrap().flatten_all()?.to_vec1::<f32>()?;
        assert_eq!(gradient, [1.0, 0.0, 1.0, 0.0]);
        assert!(y.flatten_all()?.to_vec1::<f32>()?[1].is_nan());
        Ok(())
    }
}
