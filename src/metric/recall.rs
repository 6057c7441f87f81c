//! `val/recall`

use candle_core::{Result, Tensor};

use crate::metric::outcomes::{self, Average, OUTCOMES, Outcome};
use crate::metric::{Kept, Metric};
use crate::plan::{Measurable, Mode};

/// Share of what is there that was found, class by class, and their mean (the balanced accuracy);
/// or of all classes together.
#[derive(Debug)]
pub struct Recall(pub Average);

impl Metric for Recall {
    fn name(&self) -> &'static str {
        match self.0 {
            Average::Macro => "recall",
            Average::Micro => "recall_micro",
        }
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        self.0.why_not(answers)
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn keeps(&self) -> &'static str {
        OUTCOMES
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<Kept> {
        outcomes::measure(outputs, targets)
    }

    fn value(&self, all: &Kept) -> f64 {
        self.0.of(all, Outcome::recall)
    }
}
