//! `val/top5_accuracy`, and the like.

use candle_core::{Result, Tensor};

use crate::metric::{Metric, MetricState, needs_classes};
use crate::ops::count_in_top;
use crate::plan::{Measurable, Mode};

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

    fn why_not(&self, answers: &Measurable) -> Option<String> {
        if let Some(why) = needs_classes(answers) {
            return Some(why);
        }
        if answers.labels_in_sequence {
            return Some("needs one label for each sample".to_owned());
        }
        let classes = answers.classes;
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
        let six = Measurable {
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
        assert!(top5.why_not(&Measurable { classes: 5, ..six }).is_some());
        assert!(top5.why_not(&Measurable { labels_in_sequence: true, ..six }).is_some());
    }
}
