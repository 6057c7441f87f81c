//! `val/r2`

use candle_core::{Result, Tensor};

use crate::metric::{Kept, Metric, errors, needs_numbers};
use crate::plan::{Measurable, Mode};

/// Share of the variance of the targets that is explained: of each number of a target (each series,
/// over samples and time steps), and their mean, as scikit-learn's `r2_score`.
#[derive(Debug)]
pub struct R2;

impl Metric for R2 {
    fn name(&self) -> &'static str {
        "r2"
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        needs_numbers(answers)
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
        errors::mean(all, &[], |errors, _| errors.r2())
    }
}
