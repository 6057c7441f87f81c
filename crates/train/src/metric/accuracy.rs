//! `val/accuracy`, `val/top5_accuracy` and the like, and `val/exact_match`.

use candle_core::{Device, Result, Tensor};

use crate::loss::{counted, rows};
use crate::metric::{Metric, MetricState, needs_classes};
use crate::ops::{count_correct, count_in_top};
use crate::plan::{MetricContext, Mode, Targets};

/// Share of answers whose largest output (the first, if several) is that of the label.
#[derive(Debug)]
pub struct Accuracy;

impl Metric for Accuracy {
    fn name(&self) -> &'static str {
        "accuracy"
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        needs_classes(context)
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        let (outputs, labels) = rows(outputs, targets)?;
        Ok(MetricState::of_answers(count_correct(&outputs, &labels)?, counted(&labels)?))
    }
}

/// Share of the samples whose label is among the `K` largest outputs (the first ones, if several
/// are equal).
#[derive(Debug)]
pub struct TopAccuracy<const K: usize>;

impl<const K: usize> Metric for TopAccuracy<K> {
    fn name(&self) -> &'static str {
        match K {
            2 => "top2_accuracy",
            3 => "top3_accuracy",
            5 => "top5_accuracy",
            _ => "top10_accuracy",
        }
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        if let Some(why) = needs_classes(context) {
            return Some(why);
        }
        if context.labels_in_sequence {
            return Some("needs one label for each sample".to_owned());
        }
        let classes = context.classes;
        let least = K + 1;
        (classes < least)
            .then(|| format!("needs at least {least} classes, but the data has {classes}"))
    }

    fn is_usual(&self) -> bool {
        K == 5
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<MetricState> {
        Ok(MetricState::of_answers(count_in_top(outputs, targets, K)?, targets.elem_count()))
    }
}

/// Share of multi-label samples of which all classes are right, as scikit-learn's `accuracy_score`.
#[derive(Debug)]
pub struct ExactMatch;

impl Metric for ExactMatch {
    fn name(&self) -> &'static str {
        "exact_match"
    }

    fn mode(&self) -> Mode {
        Mode::Max
    }

    fn why_not(&self, context: &MetricContext) -> Option<String> {
        let what = "needs samples that may have several classes";
        (context.targets != Targets::MultiLabel).then(|| what.to_owned())
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

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn the_label_counts_among_the_five_largest() {
        let cpu = &Device::Cpu;
        let row: [f32; 7] = [0.5, 0.9, 0.1, 0.7, 0.3, 0.2, 0.3];
        let outputs = Tensor::new(&[row, row, row, row, [f32::NAN; 7]], cpu).unwrap();
        // The fifth largest is the first of two equal ones.
        let labels = Tensor::new(&[1u32, 0, 4, 2, 0], cpu).unwrap();
        let kept = TopAccuracy::<5>.measure(&outputs, &labels).unwrap();
        assert_eq!(kept, MetricState::Sums(vec![3.0, 5.0]));
        let tied = Tensor::new(&[[1f32; 7], [1f32; 7]], cpu).unwrap();
        let labels = Tensor::new(&[4u32, 5], cpu).unwrap();
        assert_eq!(TopAccuracy::<5>.measure(&tied, &labels).unwrap().sums()[0], 1.0);
        assert_eq!(TopAccuracy::<10>.name(), "top10_accuracy");
    }

    #[test]
    fn five_classes_are_too_few() {
        let six = MetricContext {
            targets: crate::plan::Targets::Classes,
            classes: 6,
            samples: 10,
            labels_in_sequence: false,
            is_standardized: false,
            has_token_bytes: false,
            has_naive_errors: false,
        };
        let top5 = TopAccuracy::<5>;
        assert_eq!(top5.why_not(&six), None);
        assert!(top5.why_not(&MetricContext { classes: 5, ..six }).is_some());
        assert!(top5.why_not(&MetricContext { labels_in_sequence: true, ..six }).is_some());
    }
}
