//! `val/f1`

use candle_core::{Result, Tensor};

use crate::metric::outcomes::{self, Average, OUTCOMES, Outcome};
use crate::metric::{Kept, Metric};
use crate::plan::{Measurable, Mode};

/// Harmonic mean of precision and recall, class by class, and their mean; or of all classes
/// together.
#[derive(Debug)]
pub struct F1(pub Average);

impl Metric for F1 {
    fn name(&self) -> &'static str {
        match self.0 {
            Average::Macro => "f1",
            Average::Micro => "f1_micro",
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
        self.0.of(all, Outcome::f1)
    }
}
