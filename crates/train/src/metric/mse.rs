//! `val/mse`

use candle_core::{Result, Tensor};

use crate::metric::{Metric, MetricState, needs_numbers};
use crate::ops::score_mse;
use crate::plan::{Measurable, Mode};

/// Mean squared error, over samples and each sample's numbers.
#[derive(Debug)]
pub struct Mse;

impl Metric for Mse {
    fn name(&self) -> &'static str {
        "mse"
    }

    fn mode(&self) -> Mode {
        Mode::Min
    }

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        needs_numbers(answers)
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        Ok(MetricState::of_samples(&score_mse(outputs, targets)?))
    }
}
