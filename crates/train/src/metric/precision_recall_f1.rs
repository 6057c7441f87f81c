//! `val/precision`, `val/recall` and `val/f1`, class by class and averaged.

use candle_core::{Result, Tensor};

use crate::metric::outcomes::{self, Average, OUTCOMES, Outcome};
use crate::metric::{Metric, MetricState};
use crate::plan::{Measurable, Mode};

/// A value of each class's outcomes, averaged over the classes.
#[derive(Debug)]
pub struct ClassScore {
    /// With the macro average, with the micro average, and of the positive class.
    names: [&'static str; 3],
    value: fn(&Outcome) -> f64,
    average: Average,
}

impl ClassScore {
    /// Share of what was found that is right.
    pub fn precision(average: Average) -> Self {
        Self {
            names: ["precision", "precision_micro", "precision_binary"],
            value: Outcome::precision,
            average,
        }
    }

    /// Share of what is there that was found. Its macro average is the balanced accuracy.
    pub fn recall(average: Average) -> Self {
        Self { names: ["recall", "recall_micro", "recall_binary"], value: Outcome::recall, average }
    }

    /// Harmonic mean of precision and recall.
    pub fn f1(average: Average) -> Self {
        Self { names: ["f1", "f1_micro", "f1_binary"], value: Outcome::f1, average }
    }
}

impl Metric for ClassScore {
    fn name(&self) -> &'static str {
        match self.average {
            Average::Macro => self.names[0],
            Average::Micro => self.names[1],
            Average::Binary => self.names[2],
        }
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        self.average.why_not(answers)
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn keeps(&self) -> &'static str {
        OUTCOMES
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        outcomes::measure(outputs, targets)
    }

    fn value(&self, all: &MetricState) -> f64 {
        self.average.of(all, self.value)
    }
}
