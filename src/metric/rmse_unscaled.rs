//! `val/rmse_unscaled`

use candle_core::{Result, Tensor};

use crate::metric::{Kept, Metric, errors, needs_scaled};
use crate::plan::{Measurable, Mode};

/// Root of the mean squared error of standardised numbers in the units of the data.
#[derive(Debug)]
pub struct RmseUnscaled;

impl Metric for RmseUnscaled {
    fn name(&self) -> &'static str {
        "rmse_unscaled"
    }

    fn mode(&self) -> Mode {
        Mode::Min
    }

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        needs_scaled(answers)
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn keeps(&self) -> &'static str {
        errors::ERRORS
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<Kept> {
        errors::measure(outputs, targets)
    }

    fn value(&self, all: &Kept) -> f64 {
        self.value_unscaled(all, &[])
    }

    fn value_unscaled(&self, all: &Kept, scales: &[f64]) -> f64 {
        errors::mean(all, scales, |errors, scale| scale * scale * errors.mse()).sqrt()
    }
}
