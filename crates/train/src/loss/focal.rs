//! `loss.name = "focal"`

use candle_core::{D, DType, Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Options};
use crate::loss::{ClassWeights, Loss, class_weights, counted_samples, rows};
use crate::plan::{DataFacts, Targets, Unfit};

/// Added to the base, so that the gradient of a power of 0 is finite.
const EPS: f64 = 1e-30;

/// cross-entropy times (1 - p)^gamma, where p is the probability of the right class (Lin et al.
/// 2017, with a softmax), so easy samples count less.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Focal {
    /// exponent of that factor; 0 is `cross_entropy`.
    #[schemars(range(min = 0.0))]
    pub gamma: f64,
    /// weight of each class: a list in label order, or "balanced": training samples / (classes x
    /// samples of the class), as in scikit-learn. The loss is the weighted mean over the global
    /// batch. It applies only to training: val/loss and test/loss are measured without it.
    #[schemars(with = "ClassWeights", example = &"balanced")]
    pub class_weights: Option<ClassWeights>,
}

impl Default for Focal {
    fn default() -> Self {
        Self { gamma: 2.0, class_weights: None }
    }
}

impl Kind for Focal {
    const NAME: &'static str = "focal";
}

impl Loss for Focal {
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
        self.weighted_mean(outputs, targets, self.weights()?)
    }

    fn measured(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        self.weighted_mean(outputs, targets, None)
    }

    fn weight(&self, targets: &Tensor, samples: usize) -> Result<f64> {
        match self.weights()? {
            None => counted_samples(targets, samples),
            Some(weights) => class_weights::of_batch(targets, weights, samples),
        }
    }

    fn weighs_labels(&self) -> bool {
        // Without weights, too, labels are looked at on the CPU.
        true
    }

    fn runs_on_gpus(&self) -> bool {
        true
    }
}

impl Focal {
    fn weights(&self) -> Result<Option<&[f64]>> {
        self.class_weights.as_ref().map(ClassWeights::numbers).transpose()
    }

    fn weighted_mean(
        &self,
        outputs: &Tensor,
        labels: &Tensor,
        weights: Option<&[f64]>,
    ) -> Result<Tensor> {
        let (outputs, labels) = rows(outputs, labels)?;
        let (n, classes) = outputs.dims2()?;
        let (labels, weights): (Vec<u32>, Vec<f64>) =
            class_weights::of_labels(&labels, weights, classes)?.into_iter().unzip();
        let sum: f64 = weights.iter().sum();
        let column = |labels| Tensor::from_vec(labels, (n, 1), outputs.device());
        let log_p = log_softmax(&outputs.to_dtype(DType::F64)?)?.gather(&column(labels)?, 1)?;
        let mut losses = log_p.neg()?;
        if self.gamma > 0.0 {
            let missing = (log_p.exp()?.affine(-1.0, 1.0)? + EPS)?;
            losses = (losses * missing.powf(self.gamma)?)?;
        }
        let weights = Tensor::from_vec(weights, (n, 1), outputs.device())?;
        let mean = ((losses * weights)?.sum_all()? / if sum > 0.0 { sum } else { 1.0 })?;
        mean.to_dtype(DType::F32)
    }
}

/// (rows, classes), f64
fn log_softmax(logits: &Tensor) -> Result<Tensor> {
    let shifted = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?.detach())?;
    shifted.broadcast_sub(&shifted.exp()?.sum_keepdim(D::Minus1)?.log()?)
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use test_support::assert_refused;

    use super::*;
    use crate::loss::testing::{check, labels};

    #[test]
    fn it_is_cross_entropy_times_a_power_of_what_is_missing() {
        let class_weights = Some(ClassWeights::Each(vec![0.2, 1.0, 3.5]));
        check("focal", &Focal::default(), &labels("labels"));
        check("focal_w", &Focal { gamma: 0.5, class_weights }, &labels("some_labels"));
        check("cross_entropy", &Focal { gamma: 0.0, class_weights: None }, &labels("labels"));
    }

    #[test]
    fn an_answer_beyond_doubt_has_a_slope() {
        let outputs = Var::new(&[[900f32, 0.0]], &Device::Cpu).unwrap();
        let label = Tensor::new(&[0u32], &Device::Cpu).unwrap();
        let loss = Focal { gamma: 0.5, class_weights: None }.mean(&outputs, &label).unwrap();
        let gradients = loss.backward().unwrap();
        let gradient = gradients.get(&outputs).unwrap().flatten_all().unwrap();
        assert!(gradient.to_vec1::<f32>().unwrap().iter().all(|slope| slope.abs() < 1e-6));
    }

    #[test]
    fn a_label_that_is_no_class_is_refused() {
        let outputs = Tensor::new(&[[1f32, 0.0]], &Device::Cpu).unwrap();
        let label = Tensor::new(&[2u32], &Device::Cpu).unwrap();
        assert_refused(Focal::default().mean(&outputs, &label), "label 2 of 2 classes");
    }
}
