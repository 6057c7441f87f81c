//! `loss.name = "bce_with_logits"`

use candle_core::{DType, Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::{Kind, Options};
use crate::loss::{ClassWeights, Loss};
use crate::plan::{DataFacts, Targets, Unfit};

/// sigmoid cross-entropy for multi-label data, as `torch.nn.BCEWithLogitsLoss`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BceWithLogits {
    /// weight of the positive samples of each label: a list in label order, or "balanced": training
    /// samples without the label / those with it. It applies only to training: val/loss and
    /// test/loss are measured without it.
    #[schemars(with = "ClassWeights", example = &"balanced")]
    pub pos_weight: Option<ClassWeights>,
}

impl Kind for BceWithLogits {
    const NAME: &'static str = "bce_with_logits";
}

impl Loss for BceWithLogits {
    fn targets(&self) -> Targets {
        Targets::MultiLabel
    }

    fn is_never_negative(&self) -> bool {
        true
    }

    fn options_from_data(&self, data: &DataFacts) -> std::result::Result<Options, Unfit> {
        let key = "pos_weight";
        if self.pos_weight != Some(ClassWeights::Balanced) || data.class_counts.is_empty() {
            return ClassWeights::resolved(self.pos_weight.as_ref(), key, data);
        }
        let weight = |&with: &u64| match with {
            0 => 1.0,
            with => (data.n_train as u64).saturating_sub(with) as f64 / with as f64,
        };
        let weights: Vec<f64> = data.class_counts.iter().map(weight).collect();
        Ok(Options::from([(key.to_owned(), weights.into())]))
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let weights = self.pos_weight.as_ref().map(ClassWeights::numbers).transpose()?;
        let losses = sigmoid_cross_entropy(outputs, targets, weights)?;
        losses.mean_all()?.to_dtype(DType::F32)
    }

    fn measured(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        Self::default().mean(outputs, targets)
    }

    fn weighs_labels(&self) -> bool {
        // The weights themselves are handed to a GPU in each pass.
        self.pos_weight.is_some()
    }

    fn runs_on_gpus(&self) -> bool {
        true
    }
}

/// -(w t log s(x) + (1 - t) log(1 - s(x))) of each element, f64, where w is the weight of the
/// class.
pub(super) fn sigmoid_cross_entropy(
    outputs: &Tensor,
    targets: &Tensor,
    weights: Option<&[f64]>,
) -> Result<Tensor> {
    let x = outputs.to_dtype(DType::F64)?;
    let t = targets.to_dtype(DType::F64)?;
    let missed = minus_log_sigmoid(&x)?;
    let missed = match weights {
        None => missed,
        Some(weights) => {
            let more: Vec<f64> = weights.iter().map(|weight| weight - 1.0).collect();
            let more = Tensor::from_vec(more, weights.len(), x.device())?;
            (missed * (t.broadcast_mul(&more)? + 1.0)?)?
        }
    };
    (t.affine(-1.0, 1.0)? * x)? + missed
}

/// log(1 + e^-x), without overflow, and with the right gradient at 0 too.
pub(super) fn minus_log_sigmoid(x: &Tensor) -> Result<Tensor> {
    let minus = x.neg()?;
    let largest = minus.relu()?.detach();
    let sum = (largest.neg()?.exp()? + (minus - &largest)?.exp()?)?;
    largest + sum.log()?
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::loss::testing::{check, recorded, three_classes};

    #[test]
    fn it_is_pytorchs() {
        let pos_weight = Some(ClassWeights::Each(vec![0.2, 1.0, 3.5]));
        check("bce_with_logits", &BceWithLogits::default(), &recorded("some_classes"));
        check("bce_with_logits_w", &BceWithLogits { pos_weight }, &recorded("some_classes"));
    }

    #[test]
    fn large_outputs_and_zeros_have_their_value_and_slope() {
        let outputs = Var::new(&[[-900f32, 900.0, 0.0]], &Device::Cpu).unwrap();
        let targets = Tensor::new(&[[1f32, 1.0, 1.0]], &Device::Cpu).unwrap();
        let loss = BceWithLogits::default().mean(&outputs, &targets).unwrap();
        let expected = (900.0 + 2f64.ln()) / 3.0;
        assert!((f64::from(loss.to_scalar::<f32>().unwrap()) - expected).abs() < 1e-4);
        let gradients = loss.backward().unwrap();
        let gradient = gradients.get(&outputs).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(gradient, [[-1.0 / 3.0, 0.0, -0.5 / 3.0]]);
    }

    #[test]
    fn balanced_weights_are_absent_over_present() {
        let data = crate::plan::DataFacts { class_counts: vec![5, 2, 0], ..three_classes() };
        let loss = BceWithLogits { pos_weight: Some(ClassWeights::Balanced) };
        assert_eq!(
            loss.options_from_data(&data).unwrap()["pos_weight"],
            serde_json::json!([1.0, 4.0, 1.0])
        );
        let refused = loss.options_from_data(&three_classes()).unwrap_err();
        assert!(refused.what.contains("does not count its classes"), "{}", refused.what);
    }
}
