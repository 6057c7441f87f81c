//! `val/accuracy`

use candle_core::{Result, Tensor};

use crate::loss::{counted, rows};
use crate::metric::{Metric, MetricState, needs_classes};
use crate::ops::count_correct;
use crate::plan::{Measurable, Mode};

/// Share of the answers whose largest output (the first, if several) is that of their label.
#[derive(Debug)]
pub struct Accuracy;

impl Metric for Accuracy {
    fn name(&self) -> &'static str {
        "accuracy"
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        needs_classes(answers)
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        let (outputs, labels) = rows(outputs, targets)?;
        Ok(MetricState::of_answers(count_correct(&outputs, &labels)?, counted(&labels)?))
    }
}
