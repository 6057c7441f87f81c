//! What forecasters share: the parts of a window, and the normalisation of each window by its own statistics.

use candle_core::{Result, Tensor, bail};

use crate::plan::ModelPlan;

/// Sizes of a forecast.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Time steps that the model sees.
    pub(super) seen: usize,
    /// Time steps that it predicts.
    pub(super) next: usize,
    /// Series.
    pub(super) series: usize,
    /// Features of the date.
    pub(super) marks: usize,
}

impl Window {
    /// The sizes that the data gives.
    pub(super) fn of(plan: &ModelPlan) -> Result<Self> {
        match (&plan.input[..], &plan.target[..]) {
            (&[seen, rows], &[next, series]) if rows >= series => {
                Ok(Self { seen, next, series, marks: rows - series })
            }
            (input, target) => bail!(
                "it predicts series: samples are (time steps, series and features of the date) and targets (time \
                 steps, series), not {input:?} and {target:?}; use `data.name = \"csv_forecast\"`"
            ),
        }
    }

    /// The series of an input (n, time steps, series + marks): (n, time steps, series).
    pub(super) fn series(&self, input: &Tensor) -> Result<Tensor> {
        input.narrow(2, 0, self.series)?.contiguous()
    }

    /// The features of the dates: (n, time steps, marks).
    pub(super) fn marks(&self, input: &Tensor) -> Result<Tensor> {
        input.narrow(2, self.series, self.marks)
    }
}

/// How a window's deviation is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Deviation {
    /// sqrt(sum of squares / n + 1e-5)
    Population,
    /// sqrt(sum of squares / (n - 1)) + 1e-5
    Sample,
}

/// Windows whose series were each standardised by their own mean and deviation, which no gradient sees.
pub(super) struct Normalised {
    /// (n, time steps, series)
    pub(super) values: Tensor,
    mean: Tensor,
    scale: Tensor,
}

impl Normalised {
    /// x (n, time steps, series).
    pub(super) fn new(x: &Tensor, deviation: Deviation) -> Result<Self> {
        const EPS: f64 = 1e-5;
        let x = x.detach();
        let steps = x.dim(1)? as f64;
        let mean = x.mean_keepdim(1)?;
        let centred = x.broadcast_sub(&mean)?;
        let squares = centred.sqr()?.sum_keepdim(1)?;
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
        Ok(Self { values: centred.broadcast_div(&divisor)?, mean, scale })
    }

    /// A forecast (n, time steps, series) on the scale of its window.
    pub(super) fn undo(&self, forecast: &Tensor) -> Result<Tensor> {
        forecast.broadcast_mul(&self.scale)?.broadcast_add(&self.mean)
    }
}
