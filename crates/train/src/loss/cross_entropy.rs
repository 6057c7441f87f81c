//! `loss.name = "cross_entropy"`. Without class weights the arithmetic is in `ops/loss.rs`.

use candle_core::{DType, Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Options};
use crate::loss::{ClassWeights, Loss, class_weights, counted, counted_samples, rows};
use crate::ops;
use crate::plan::{DataFacts, Targets, Unfit};

/// softmax cross-entropy for classes, as `torch.nn.CrossEntropyLoss`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CrossEntropy {
    /// label smoothing factor, 0 to 1. It applies only to training: val/loss and test/loss are
    /// measured without it, as in timm, so they can be compared between runs.
    #[schemars(range(min = 0.0, max = 1.0), example = 0.1)]
    pub label_smoothing: f64,
    /// weight of each class: a list in label order, or "balanced": training samples / (classes x
    /// samples of the class), as in scikit-learn. The loss is the weighted mean over the global
    /// batch; with `data.mixup` the mean over samples. It applies only to training, like
    /// `label_smoothing`.
    #[schemars(with = "ClassWeights", example = &"balanced")]
    pub class_weights: Option<ClassWeights>,
}

impl Kind for CrossEntropy {
    const NAME: &'static str = "cross_entropy";
}

impl Loss for CrossEntropy {
    fn targets(&self) -> Targets {
        Targets::Classes
    }

    fn is_never_negative(&self) -> bool {
        true
    }

    fn options_from_data(&self, data: &DataFacts) -> std::result::Result<Options, Unfit> {
        ClassWeights::resolved(self.class_weights.as_ref(), "class_weights", data)
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        match &self.class_weights {
            None => mean(outputs, targets, self.label_smoothing),
            Some(weights) if are_probabilities(targets) => {
                self.mixed_mean(outputs, targets, weights.numbers()?)
            }
            Some(weights) => self.weighted_mean(outputs, targets, weights.numbers()?),
        }
    }

    #[cfg(feature = "cuda")]
    fn scored(
        &self,
        outputs: &Tensor,
        targets: &Tensor,
        weight: f64,
        found: &ops::cuda::PassNumbers,
    ) -> Result<Option<Tensor>> {
        if self.class_weights.is_some() || are_probabilities(targets) {
            return Ok(None);
        }
        let smoothing = self.label_smoothing;
        ops::cross_entropy_scored(outputs, targets, smoothing, found, weight).map(Some)
    }

    fn measured(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        mean(outputs, targets, 0.0)
    }

    fn weight(&self, targets: &Tensor, samples: usize) -> Result<f64> {
        match &self.class_weights {
            None => counted_samples(targets, samples),
            Some(_) if are_probabilities(targets) => Ok(samples as f64),
            Some(weights) => class_weights::of_batch(targets, weights.numbers()?, samples),
        }
    }

    fn weighs_labels(&self) -> bool {
        self.class_weights.is_some()
    }

    fn runs_on_gpus(&self) -> bool {
        true
    }

    fn takes_probabilities(&self) -> bool {
        true
    }
}

impl CrossEntropy {
    /// Mean over samples of -sum (weight x probability) log softmax, as `CrossEntropyLoss` of
    /// probabilities: every sample has the weight 1 in the mean.
    fn mixed_mean(&self, outputs: &Tensor, targets: &Tensor, weights: &[f64]) -> Result<Tensor> {
        let classes = outputs.dim(1)?;
        let each = (0..classes).map(|class| class_weights::weight(Some(weights), class) as f32);
        let weights = Tensor::from_vec(each.collect(), (1, classes), outputs.device())?;
        let smoothing = self.label_smoothing;
        let smoothed = targets.affine(1.0 - smoothing, smoothing / classes as f64)?;
        ops::cross_entropy_soft(outputs, &smoothed.broadcast_mul(&weights)?, 0.0)
    }

    /// Sum over rows of -sum (weight x target) log softmax, divided by the sum of the labels'
    /// weights.
    fn weighted_mean(&self, outputs: &Tensor, labels: &Tensor, weights: &[f64]) -> Result<Tensor> {
        let (outputs, labels) = rows(outputs, labels)?;
        let (n, classes) = outputs.dims2()?;
        let labels = class_weights::of_labels(&labels, Some(weights), classes)?;
        let sum: f64 = labels.iter().map(|(_, weight)| weight).sum();
        let uniform = self.label_smoothing / classes as f64;
        let mut targets = Vec::with_capacity(n * classes);
        for (label, weight) in labels {
            let begin = targets.len();
            let spread = if weight > 0.0 { uniform } else { 0.0 };
            let each = (0..classes).map(|class| class_weights::weight(Some(weights), class));
            targets.extend(each.map(|weight| (spread * weight) as f32));
            targets[begin + label as usize] += ((1.0 - self.label_smoothing) * weight) as f32;
        }
        let targets = Tensor::from_vec(targets, (n, classes), outputs.device())?;
        let mean = ops::cross_entropy_soft(&outputs, &targets, 0.0)?;
        mean * (n as f64 / if sum > 0.0 { sum } else { 1.0 })
    }
}

/// True if targets are a probability of each class, not labels.
fn are_probabilities(targets: &Tensor) -> bool {
    targets.dtype() == DType::F32
}

/// Mean without class weights; targets are labels, or a probability of each class.
fn mean(outputs: &Tensor, targets: &Tensor, smoothing: f64) -> Result<Tensor> {
    if are_probabilities(targets) {
        return ops::cross_entropy_soft(outputs, targets, smoothing);
    }
    let (outputs, targets) = rows(outputs, targets)?;
    if counted(&targets)? == 0 {
        return Ok(ops::cross_entropy_sum(&outputs, &targets, smoothing)?.0);
    }
    ops::cross_entropy(&outputs, &targets, smoothing)
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::loss::testing::{check, labels, recorded};

    fn weighted(label_smoothing: f64) -> CrossEntropy {
        let class_weights = Some(ClassWeights::Each(vec![0.2, 1.0, 3.5]));
        CrossEntropy { label_smoothing, class_weights }
    }

    #[test]
    fn it_is_pytorchs() {
        check("cross_entropy", &CrossEntropy::default(), &labels("labels"));
        check("cross_entropy_w", &weighted(0.0), &labels("labels"));
        check("cross_entropy_w_s.1", &weighted(0.1), &labels("labels"));
        check("cross_entropy_w_ignored", &weighted(0.1), &labels("some_labels"));
        check("cross_entropy_w_mixed", &weighted(0.0), &recorded("mixed"));
        check("cross_entropy_w_s.1_mixed", &weighted(0.1), &recorded("mixed"));
    }

    #[test]
    fn a_batch_weighs_what_its_labels_weigh() {
        let weight = |loss: &CrossEntropy, labels| loss.weight(labels, 4).unwrap();
        let (all, some, mixed) = (labels("labels"), labels("some_labels"), recorded("mixed"));
        assert_eq!(weight(&CrossEntropy::default(), &all), 4.0);
        assert_eq!(weight(&CrossEntropy::default(), &some), 3.0);
        assert_eq!(weight(&weighted(0.1), &mixed), 4.0);
        let sum = |name| {
            let labels = labels(name).to_vec1::<i64>().unwrap();
            labels.iter().filter(|&&l| l >= 0).map(|&l| [0.2, 1.0, 3.5][l as usize]).sum::<f64>()
        };
        assert!((weight(&weighted(0.1), &all) - sum("labels")).abs() < 1e-12);
        assert!((weight(&weighted(0.1), &some) - sum("some_labels")).abs() < 1e-12);
    }

    #[test]
    fn labels_without_weight_leave_a_gradient_of_zeros() {
        let class_weights = Some(ClassWeights::Each(vec![0.0, 1.0, 1.0]));
        let loss = CrossEntropy { label_smoothing: 0.1, class_weights };
        let outputs = Var::new(&[[1f32, 2.0, 3.0]], &Device::Cpu).unwrap();
        let label = Tensor::new(&[0u32], &Device::Cpu).unwrap();
        let mean = loss.mean(&outputs, &label).unwrap();
        assert_eq!(mean.to_scalar::<f32>().unwrap(), 0.0);
        let gradients = mean.backward().unwrap();
        let gradient = gradients.get(&outputs).unwrap().flatten_all().unwrap();
        assert_eq!(gradient.to_vec1::<f32>().unwrap(), [0.0; 3]);
        assert_eq!(loss.weight(&label, 1).unwrap(), 0.0);
    }
}
