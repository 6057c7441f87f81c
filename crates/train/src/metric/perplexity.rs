//! `val/perplexity`

use candle_core::{Result, Tensor};

use crate::loss::rows;
use crate::metric::{Metric, MetricState, needs_classes};
use crate::ops::score_classes;
use crate::plan::{Measurable, Mode};

/// e to the mean cross-entropy of the tokens that count.
#[derive(Debug)]
pub struct Perplexity;

impl Metric for Perplexity {
    fn name(&self) -> &'static str {
        "perplexity"
    }

    fn mode(&self) -> Mode {
        Mode::Min
    }

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        needs_classes(answers).or_else(|| {
            let what = "needs a text: a label at each position of a sample";
            (!answers.labels_in_sequence).then(|| what.to_owned())
        })
    }

    fn is_usual(&self) -> bool {
        false
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        let (outputs, labels) = rows(outputs, targets)?;
        let scores = score_classes(&outputs, &labels, 0.0)?;
        Ok(MetricState::Sums(vec![scores.loss_sum, scores.losses.len() as f64]))
    }

    fn value(&self, all: &MetricState) -> f64 {
        all.mean().exp()
    }
}
