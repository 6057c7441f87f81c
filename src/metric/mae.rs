//! `val/mae`

use candle_core::{Result, Tensor};

use crate::metric::{Kept, Metric, needs_numbers};
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

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<Kept> {
        Ok(Kept::of_samples(&score_mae(outputs, targets)?))
    }
}
