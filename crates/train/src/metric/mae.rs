//! `val/mae`, and `val/mae_unscaled` in the units of the data

use candle_core::{Result, Tensor};

use crate::metric::errors::{ErrorScore, mean};
use crate::metric::{Metric, MetricState, needs_numbers, needs_scaled};
use crate::ops::score_mae;
use crate::plan::{Measurable, Mode};

/// Mean absolute error, over samples and each sample's numbers.
#[derive(Debug)]
pub struct Mae;

impl Metric for Mae {
    fn name(&self) -> &'static str {
        "mae"
    }

    fn mode(&self) -> Mode {
        Mode::Min
    }

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        needs_numbers(answers)
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        Ok(MetricState::of_samples(&score_mae(outputs, targets)?))
    }
}

/// Mean absolute error of standardised numbers in the units of the data.
pub const MAE_UNSCALED: ErrorScore = ErrorScore {
    name: "mae_unscaled",
    mode: Mode::Min,
    why_not: needs_scaled,
    value: |all, scales| mean(all, scales, |errors, scale| scale * errors.mae()),
};
