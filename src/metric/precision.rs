//! `val/precision`

use candle_core::{Result, Tensor};

use crate::metric::outcomes::{self, Average, OUTCOMES, Outcome};
use crate::metric::{Kept, Metric};
use crate::plan::{Measurable, Mode};

/// Share of what was found that is right, class by class, and their mean; or of all classes
/// together.
#[derive(Debug)]
pub struct Precision(pub Average);

impl Metric for Precision {
    fn name(&self) -> &'static str {
        match self.0 {
            Average::Macro => "precision",
            Average::Micro => "precision_micro",
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
        self.0.of(all, Outcome::precision)
    }
}
