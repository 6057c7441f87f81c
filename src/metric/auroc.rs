//! `val/auroc`

use candle_core::{Result, Tensor};

use crate::metric::scores::{self, SCORES, ties};
use crate::metric::{Kept, Metric};
use crate::plan::{Measurable, Mode};

/// Area under the receiver operating characteristic of each class against all others, and their
/// mean; classes that all samples have, or none, are left out.
#[derive(Debug)]
pub struct Auroc;

impl Metric for Auroc {
    fn name(&self) -> &'static str {
        "auroc"
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
        scores::mean(all, auroc)
    }
}

/// The share of pairs of a sample with the class and one without it that are in the right order;
/// ties count half. Exact in integers. `None` without such pairs.
pub(crate) fn auroc(sorted: &[(f32, bool)]) -> Option<f64> {
    let (mut halves, mut before, mut others) = (0u128, 0, 0);
    for [right, wrong] in ties(sorted) {
        // Samples without the class that come before one with it are in the wrong order.
        halves += u128::from(right) * u128::from(2 * others + wrong);
        before += right;
        others += wrong;
    }
    let pairs = u128::from(before) * u128::from(others);
    (pairs > 0).then(|| 1.0 - halves as f64 / (2 * pairs) as f64)
}
