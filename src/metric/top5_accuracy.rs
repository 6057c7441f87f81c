//! `val/top5_accuracy`

use candle_core::{Result, Tensor};

use crate::metric::{Metric, Share, needs_classes};
use crate::ops::count_in_top;
use crate::plan::{Measurable, Mode};

/// Outputs among which the label may be.
const TOP: usize = 5;

/// Share of the samples whose label is among the five largest outputs (the first ones, if several are equal).
#[derive(Debug)]
pub struct Top5Accuracy;

impl Metric for Top5Accuracy {
    fn name(&self) -> &'static str {
        "top5_accuracy"
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
        (classes <= TOP).then(|| format!("needs at least 6 classes, but the data has {classes}"))
    }

    fn measure(&self, outputs: &Tensor, targets: &Tensor) -> Result<Share> {
        Ok(Share::of_answers(count_in_top(outputs, targets, TOP)?, targets.elem_count()))
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
        let share = Top5Accuracy.measure(&outputs, &labels).unwrap();
        assert_eq!(share, Share { sum: 3.0, count: 5.0 });
        let tied = Tensor::new(&[[1f32; 7], [1f32; 7]], cpu).unwrap();
        let labels = Tensor::new(&[4u32, 5], cpu).unwrap();
        assert_eq!(Top5Accuracy.measure(&tied, &labels).unwrap().sum, 1.0);
    }

    #[test]
    fn five_classes_are_too_few() {
        let six = Measurable {
            targets: crate::plan::Targets::Classes,
            classes: 6,
            labels_in_sequence: false,
        };
        assert_eq!(Top5Accuracy.why_not(&six), None);
        assert!(Top5Accuracy.why_not(&Measurable { classes: 5, ..six }).is_some());
        assert!(Top5Accuracy.why_not(&Measurable { labels_in_sequence: true, ..six }).is_some());
    }
}
