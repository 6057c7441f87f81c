//! `val/average_precision`

use candle_core::{Result, Tensor};

use crate::metric::scores::{self, SCORES, ties};
use crate::metric::{Kept, Metric};
use crate::plan::{Measurable, Mode};

/// Mean precision over the samples of a class, from the surest to the least sure, and the mean of
/// the classes that occur.
#[derive(Debug)]
pub struct AveragePrecision;

impl Metric for AveragePrecision {
    fn name(&self) -> &'static str {
        "average_precision"
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        scores::why_not(answers)
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn keeps(&self) -> &'static str {
        SCORES
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<Kept> {
        scores::measure(outputs, targets)
    }

    fn value(&self, all: &Kept) -> f64 {
        scores::mean(all, average_precision)
    }
}

/// The sum of each gain of recall times the precision there. `None` without samples of the class.
pub(crate) fn average_precision(sorted: &[(f32, bool)]) -> Option<f64> {
    let all = sorted.iter().filter(|(_, is_right)| *is_right).count() as f64;
    let (mut found, mut asked, mut sum) = (0, 0, 0.0);
    for [right, wrong] in ties(sorted) {
        found += right;
        asked += right + wrong;
        sum += right as f64 / all * (found as f64 / asked as f64);
    }
    (all > 0.0).then_some(sum)
}
