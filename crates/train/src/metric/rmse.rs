//! `val/rmse`, and `val/rmse_unscaled` in the units of the data

use candle_core::{Result, Tensor};

use crate::metric::errors::{ErrorScore, mean};
use crate::metric::{Metric, MetricState, Mse, needs_numbers, needs_scaled};
use crate::plan::{Measurable, Mode};

/// Root of the mean squared error, in the unit of the targets.
#[derive(Debug)]
pub struct Rmse;

impl Metric for Rmse {
    fn name(&self) -> &'static str {
        "rmse"
    }

    fn mode(&self) -> Mode {
        Mode::Min
    }

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        needs_numbers(answers)
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn keeps(&self) -> &'static str {
        Mse.keeps()
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        Mse.measure(outputs, targets)
    }

    fn value(&self, all: &MetricState) -> f64 {
        all.mean().sqrt()
    }
}

/// Root of the mean squared error of standardised numbers in the units of the data.
pub const RMSE_UNSCALED: ErrorScore = ErrorScore {
    name: "rmse_unscaled",
    mode: Mode::Min,
    why_not: needs_scaled,
    value: |all, scales| mean(all, scales, |errors, scale| scale * scale * errors.mse()).sqrt(),
};
