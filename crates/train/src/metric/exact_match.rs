//! `val/exact_match`

use candle_core::{Device, Result, Tensor};

use crate::metric::{Metric, MetricState};
use crate::plan::{Measurable, Mode, Targets};

/// Share of the samples of which all classes are right, as scikit-learn's `accuracy_score` of
/// several labels.
#[derive(Debug)]
pub struct ExactMatch;

impl Metric for ExactMatch {
    fn name(&self) -> &'static str {
        "exact_match"
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        let what = "needs samples that may have several classes";
        (answers.targets != Targets::MultiLabel).then(|| what.to_owned())
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        let outputs = outputs.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
        let targets = targets.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
        let matches = |(row, has): &(&Vec<f32>, &Vec<f32>)| {
            row.iter().zip(*has).all(|(output, has)| (*output > 0.0) == (*has > 0.5))
        };
        let right = outputs.iter().zip(&targets).filter(matches).count();
        Ok(MetricState::of_answers(right, targets.len()))
    }
}
