//! Series in time that are each standardised by their own mean and deviation, and forecasts on
//! their scales again (Kim et al., ICLR 2022, without its weights).

use candle_core::{Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::chain;
use super::layout::transposed;
use super::operation::{Gradients, Input, Operation};
use super::simd::{sum, vectorised};
use super::storage::{read, tensor};

const EPS: f64 = 1e-5;

/// Series per task.
const SERIES: usize = 16;

/// Deviation of a series of n values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deviation {
    /// sqrt(sum of squares / n + 1e-5)
    Population,
    /// sqrt(sum of squares / (n - 1)), by which forecasts are scaled; values are divided by 1e-5
    /// more.
    Sample,
}

impl Deviation {
    /// Divisor of the sum of squares of n values, summand before the root, and summand to the root where
    /// values are divided by it.
    pub fn numbers(self, n: usize) -> [f64; 3] {
        match self {
            Self::Population => [n as f64, EPS, 0.0],
            Self::Sample => [n as f64 - 1.0, 0.0, EPS],
        }
    }

    /// Factor of forecasts, and divisor of values.
    fn of(self, squares: f64, n: usize) -> [f32; 2] {
        match self {
            Self::Population => [(squares / n as f64 + EPS).sqrt() as f32; 2],
            Self::Sample => {
                let scale = (squares / (n as f64 - 1.0)).sqrt();
                [scale as f32, (scale + EPS) as f32]
            }
        }
    }
}

/// Windows of series, each standardised without a gradient, and their means and scales, to which
/// forecasts are brought back.
pub struct InstanceNorm {
    /// (n, rows, time steps)
    pub rows: Tensor,
    /// (n, series, 1)
    mean: Tensor,
    /// (n, series, 1)
    scale: Tensor,
}

impl InstanceNorm {
    /// Windows x (n, time steps, rows) f32, of whose rows the first `series` are standardised.
    /// Others stay as they are, such as features of the date.
    pub fn new(x: &Tensor, series: usize, deviation: Deviation) -> Result<Self> {
        let (n, steps, rows) = x.dims3()?;
        if series == 0 || series > rows {
            bail!("{series} series among {rows} rows");
        }
        let x = x.detach();
        if !x.device().is_cpu() {
            return Self::composed(&x, series, deviation);
        }
        read([&x], |[x]| {
            let mut values = transposed(x, steps, rows);
            let of_series = values
                .par_chunks_mut(steps.max(1))
                .enumerate()
                .with_min_len(SERIES)
                .filter(|(i, _)| i % rows < series);
            let moments = of_series.map(|(_, row)| {
                vectorised(
                    #[inline(always)]
                    || standardise(row, deviation),
                )
            });
            let (mean, scale) = moments.unzip();
            let per_series = |values: Vec<f32>| tensor(values, (n, series, 1));
            let rows = tensor(values, (n, rows, steps))?;
            Ok(Self { rows, mean: per_series(mean)?, scale: per_series(scale)? })
        })
    }

    /// By operations of Candle.
    fn composed(x: &Tensor, series: usize, deviation: Deviation) -> Result<Self> {
        let rows = x.transpose(1, 2)?.contiguous()?;
        let values = rows.narrow(1, 0, series)?;
        let others = rows.narrow(1, series, rows.dim(1)? - series)?;
        let steps = values.dim(2)? as f64;
        let mean = values.mean_keepdim(2)?;
        let centred = values.broadcast_sub(&mean)?;
        let squares = centred.sqr()?.sum_keepdim(2)?;
        let (scale, divisor) = match deviation {
            Deviation::Population => {
                let scale = ((squares / steps)? + EPS)?.sqrt()?;
                (scale.clone(), scale)
            }
            Deviation::Sample => {
                let scale = (squares / (steps - 1.0))?.sqrt()?;
                let divisor = (&scale + EPS)?;
                (scale, divisor)
            }
        };
        let rows = Tensor::cat(&[&centred.broadcast_div(&divisor)?, &others.contiguous()?], 1)?;
        Ok(Self { rows, mean, scale })
    }

    /// A forecast of the series, (n, series, time steps), on the scales of their windows: (n, time
    /// steps, series).
    pub fn denormalise(&self, forecast: &Tensor) -> Result<Tensor> {
        let (n, series, steps) = forecast.dims3()?;
        if [n, series] != self.scale.dims()[..2] {
            bail!(
                "a forecast {:?} for windows and series {:?}",
                forecast.dims(),
                self.scale.dims()
            );
        }
        if !forecast.device().is_cpu() {
            let scaled = forecast.broadcast_mul(&self.scale)?.broadcast_add(&self.mean)?;
            return scaled.transpose(1, 2);
        }
        let mean = self.mean.clone();
        let scale = self.scale.clone();
        chain::apply([forecast], Denormalise { mean, scale, sizes: [n, steps, series] })
    }
}

/// Standardises a series in place. Returns its mean and the factor of its forecast.
#[inline(always)]
fn standardise(row: &mut [f32], deviation: Deviation) -> (f32, f32) {
    let whole = sum(
        row,
        #[inline(always)]
        |x| x,
    );
    let mean = (whole / row.len() as f64) as f32;
    let squares = sum(
        row,
        #[inline(always)]
        |x| (x - mean) * (x - mean),
    );
    let [scale, divisor] = deviation.of(squares, row.len());
    for x in row {
        *x = (*x - mean) / divisor;
    }
    (mean, scale)
}

/// (n, series, time steps) -> (n, time steps, series), scaled and shifted.
pub(super) struct Denormalise {
    mean: Tensor,
    scale: Tensor,
    sizes: [usize; 3],
}

impl Operation for Denormalise {
    type Operands<T> = [T; 1];

    const NAME: &'static str = "instance-norm-undo";

    fn forward(&self, [x]: [Input<'_>; 1]) -> Result<(Vec<f32>, Shape)> {
        let [_, steps, series] = self.sizes;
        let mut y = transposed(x.values, series, steps);
        read([&self.mean, &self.scale], |[mean, scale]| {
            let windows = mean.par_chunks(series).zip(scale.par_chunks(series));
            y.par_chunks_mut(steps * series).zip(windows).for_each(|(y, (mean, scale))| {
                for y in y.chunks_exact_mut(series) {
                    for ((y, mean), scale) in y.iter_mut().zip(mean).zip(scale) {
                        *y = *y * scale + mean;
                    }
                }
            });
            Ok(())
        })?;
        Ok((y, Shape::from(&self.sizes)))
    }

    fn backward(&self, [x]: [&Tensor; 1], _: &Tensor, dy: Tensor) -> Gradients<Self> {
        let [_, steps, series] = self.sizes;
        read([&dy, &self.scale], |[dy, scale]| {
            let mut dx = transposed(dy, steps, series);
            let rows = dx.par_chunks_mut(steps.max(1)).with_min_len(SERIES).zip(scale);
            rows.for_each(|(row, scale)| row.iter_mut().for_each(|value| *value *= scale));
            Ok([Some(tensor(dx, x.shape())?)])
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use proptest::prelude::*;
    use test_support::assert_refused;

    use super::super::testing::{check_gradients, on_threads, values};
    use super::*;

    /// Windows, time steps, rows, and how many of those are series.
    const SIZES: [(usize, usize, usize, usize); 5] =
        [(1, 2, 1, 1), (2, 7, 3, 2), (3, 96, 11, 7), (1, 33, 40, 40), (5, 5, 9, 1)];

    fn windows(n: usize, steps: usize, rows: usize) -> Result<Tensor> {
        let x = values("x", 0, n * steps * rows).into_iter().map(|x| 30.0 + 4.0 * x);
        tensor(x.collect(), (n, steps, rows))
    }

    #[track_caller]
    fn assert_close(found: &Tensor, expected: &Tensor) -> Result<()> {
        assert_eq!(found.dims(), expected.dims());
        let largest = (found - expected)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!(largest < 2e-5, "{largest}");
        Ok(())
    }

    #[test]
    fn windows_and_forecasts_equal_those_of_candles_operations() -> Result<()> {
        for deviation in [Deviation::Population, Deviation::Sample] {
            for (n, steps, rows, series) in SIZES {
                let x = windows(n, steps, rows)?;
                let fused = InstanceNorm::new(&x, series, deviation)?;
                let plain = InstanceNorm::composed(&x, series, deviation)?;
                assert_close(&fused.rows, &plain.rows)?;
                let y = tensor(values("y", 1, n * series * 13), (n, series, 13))?;
                let expected = y.broadcast_mul(&plain.scale)?.broadcast_add(&plain.mean)?;
                assert_close(&fused.denormalise(&y)?, &expected.transpose(1, 2)?)?;
            }
        }
        Ok(())
    }

    #[test]
    fn a_window_that_is_undone_is_what_it_was() -> Result<()> {
        for (n, steps, rows, series) in SIZES {
            let x = windows(n, steps, rows)?;
            let norm = InstanceNorm::new(&x, series, Deviation::Population)?;
            let back = norm.denormalise(&norm.rows.narrow(1, 0, series)?)?;
            assert_close(&back, &x.narrow(2, 0, series)?)?;
            let others = norm.rows.narrow(1, series, rows - series)?;
            let kept = x.narrow(2, series, rows - series)?.transpose(1, 2)?;
            assert_eq!(others.to_vec3::<f32>()?, kept.to_vec3::<f32>()?);
        }
        Ok(())
    }

    #[test]
    fn gradients_of_forecasts_equal_the_slow_ones() -> Result<()> {
        for (n, steps, rows, series) in SIZES {
            let norm = InstanceNorm::new(&windows(n, steps, rows)?, series, Deviation::Sample)?;
            let of_series = |statistic: &Tensor| statistic.flatten_all()?.to_vec1::<f32>();
            let (mean, scale) = (of_series(&norm.mean)?, of_series(&norm.scale)?);
            let next = 5;
            let slow = |v: &[Vec<f64>]| {
                let value = |i: usize| {
                    let (window, step, s) = (i / (next * series), i / series % next, i % series);
                    let row = window * series + s;
                    v[0][row * next + step] * f64::from(scale[row]) + f64::from(mean[row])
                };
                (0..v[0].len()).map(value).collect()
            };
            check_gradients(&[&[n, series, next]], |t| norm.denormalise(&t[0]), slow, 1e-6);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn windows_are_close_to_f64_and_alike_on_any_number_of_threads(
            n in 1usize..5, steps in 24usize..400, series in 1usize..60
        ) {
            let x = windows(n, steps, series).unwrap();
            let run = |threads| {
                let norm = on_threads(threads, || InstanceNorm::new(&x, series, Deviation::Population));
                norm.unwrap().rows.flatten_all().unwrap().to_vec1::<f32>().unwrap()
            };
            let rows = run(1);
            prop_assert!(rows == run(2) && rows == run(3));
            let plain = InstanceNorm::composed(&x.to_dtype(DType::F64).unwrap(), series, Deviation::Population);
            let plain = plain.unwrap().rows.flatten_all().unwrap().to_vec1::<f64>().unwrap();
            let error = rows.iter().zip(plain).map(|(row, exact)| (f64::from(*row) - exact).abs());
            let error = error.fold(0.0, f64::max);
            println!("{n} windows of {steps} steps of {series}: error against f64 {error:.1e}");
            prop_assert!(error < 1e-5);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() -> Result<()> {
        let x = windows(2, 4, 3)?;
        assert_refused(InstanceNorm::new(&x, 4, Deviation::Sample), "4 series among 3 rows");
        assert_refused(InstanceNorm::new(&x, 0, Deviation::Sample), "0 series among 3 rows");
        let norm = InstanceNorm::new(&x, 3, Deviation::Sample)?;
        assert_refused(
            norm.denormalise(&tensor(vec![0.0; 8], (2, 2, 2))?),
            "a forecast [2, 2, 2] for windows and series",
        );
        Ok(())
    }
}
