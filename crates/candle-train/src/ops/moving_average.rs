//! Moving averages along the last axis, without a gradient: what detrends a series.

use candle_core::{Result, Tensor, bail};

#[cfg(feature = "cuda")]
use super::cuda;
use super::simd::build_rows;
use super::storage::{read, tensor};
use crate::onnx::{Graph, Value};

/// Position of the window of a moving average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// As many before as after, the first and last value repeated beyond the ends; odd windows
    /// only.
    Centred,
    /// The value and those before it; the first windows, which would be shorter, are the first
    /// whole one.
    Trailing,
}

impl Average {
    /// [`moving_average`] in a graph of ONNX, which has no such operator: a product with a matrix.
    pub fn onnx(self, graph: &mut Graph, x: &Value, window: usize) -> Value {
        let c = x.features();
        let half = window / 2;
        let mut shares = vec![0.0; c * c];
        for to in 0..c {
            for step in 0..window {
                let from = match self {
                    Self::Centred => (to + step).saturating_sub(half).min(c - 1),
                    Self::Trailing => (to + 1).max(window) - 1 - step,
                };
                shares[from * c + to] += 1.0 / window as f32;
            }
        }
        let shares = graph.floats(&[c, c], &shares);
        graph.matmul(x, &shares)
    }
}

/// The moving average of each row over `window` values: x (..., c) f32 -> (..., c), detached.
pub fn moving_average(x: &Tensor, window: usize, average: Average) -> Result<Tensor> {
    let c = x.dims().last().copied().unwrap_or(0);
    let fits = match average {
        Average::Centred => window % 2 == 1,
        Average::Trailing => (1..=c).contains(&window),
    };
    if c == 0 || !fits {
        bail!("a moving average of {window} values over rows of {c}");
    }
    #[cfg(feature = "cuda")]
    if x.device().is_cuda() {
        let x = x.contiguous()?.detach();
        let centred = average == Average::Centred;
        let gpu = cuda::Gpu::of_tensor(&x)?;
        let sizes = (c, x.elem_count());
        let averages = cuda::moving_average(&gpu, cuda::of_tensor(&x)?, window, centred, sizes)?;
        return Ok(cuda::wrap(averages, x.shape()));
    }
    read([x], |[x]| {
        let averages = build_rows(x.len(), c, |start, averages| {
            let rows = x[start..][..averages.len()].chunks_exact(c);
            for (row, averages) in rows.zip(averages.chunks_exact_mut(c)) {
                match average {
                    Average::Centred => centred(row, window, averages),
                    Average::Trailing => trailing(row, window, averages),
                }
            }
        });
        tensor(averages, x_shape(c, x.len()))
    })?
    .reshape(x.shape())
}

fn x_shape(c: usize, n: usize) -> (usize, usize) {
    (n / c, c)
}

fn centred(row: &[f32], window: usize, averages: &mut [f32]) {
    let half = (window / 2) as isize;
    let last = row.len() as isize - 1;
    let at = |i: isize| f64::from(row[i.clamp(0, last) as usize]);
    let mut sum: f64 = (-half..=half).map(at).sum();
    for (i, average) in (0isize..).zip(averages) {
        *average = (sum / window as f64) as f32;
        sum += at(i + half + 1) - at(i - half);
    }
}

fn trailing(row: &[f32], window: usize, averages: &mut [f32]) {
    let mut sum: f64 = row[..window].iter().map(|&value| f64::from(value)).sum();
    for (i, average) in averages.iter_mut().enumerate() {
        if i >= window {
            sum += f64::from(row[i]) - f64::from(row[i - window]);
        }
        *average = (sum / window as f64) as f32;
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use test_support::assert_refused;

    use super::*;

    #[test]
    fn ends_are_repeated_and_nothing_is_learnt_through_an_average() -> Result<()> {
        let x = Var::new(&[[1f32, 2.0, 6.0, 3.0], [0.0, 0.0, 3.0, 0.0]], &Device::Cpu)?;
        let centred = moving_average(&x, 3, Average::Centred)?;
        let expected = [[4.0 / 3.0, 3.0, 11.0 / 3.0, 4.0], [0.0, 1.0, 1.0, 1.0]];
        assert_eq!(centred.to_vec2::<f32>()?, expected.map(|row| row.map(|v: f64| v as f32)));
        let trailing = moving_average(&x, 2, Average::Trailing)?;
        assert_eq!(trailing.to_vec2::<f32>()?, [[1.5, 1.5, 4.0, 4.5], [0.0, 0.0, 1.5, 1.5]]);
        assert!(!trailing.track_op());
        Ok(())
    }

    #[test]
    fn a_window_wider_than_the_row_repeats_it_or_is_refused() -> Result<()> {
        let x = Tensor::new(&[[1f32, 4.0]], &Device::Cpu)?;
        assert_eq!(moving_average(&x, 5, Average::Centred)?.to_vec2::<f32>()?, [[2.2, 2.8]]);
        assert_refused(moving_average(&x, 3, Average::Trailing), "3 values over rows of 2");
        assert_refused(moving_average(&x, 4, Average::Centred), "4 values over rows of 2");
        Ok(())
    }
}
