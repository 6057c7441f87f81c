//! What forecasters share: the parts of a window.

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
}
