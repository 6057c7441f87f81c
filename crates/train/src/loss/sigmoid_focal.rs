//! `loss.name = "sigmoid_focal"`

use candle_core::{DType, Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::loss::Loss;
use crate::loss::bce_with_logits::{minus_log_sigmoid, sigmoid_cross_entropy};
use crate::plan::Targets;

/// focal loss for multi-label data, as `torchvision.ops.sigmoid_focal_loss` with
/// `reduction="mean"`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SigmoidFocal {
    /// exponent of 1 minus the probability of the right answer; 0 is `bce_with_logits`.
    #[schemars(range(min = 0.0))]
    pub gamma: f64,
    /// weight of the labels that a sample has; the others weigh 1 - alpha.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub alpha: f64,
}

impl Default for SigmoidFocal {
    fn default() -> Self {
        Self { gamma: 2.0, alpha: 0.25 }
    }
}

impl Kind for SigmoidFocal {
    const NAME: &'static str = "sigmoid_focal";
}

impl Loss for SigmoidFocal {
    fn targets(&self) -> Targets {
        Targets::MultiLabel
    }

    fn is_never_negative(&self) -> bool {
        true
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let mut losses = sigmoid_cross_entropy(outputs, targets, None)?;
        let t = targets.to_dtype(DType::F64)?;
        if self.gamma > 0.0 {
            let p = minus_log_sigmoid(&outputs.to_dtype(DType::F64)?)?.neg()?.exp()?;
            // p where a class is not there, 1 - p where it is.
            let missing = (&p + (&t * p.affine(-2.0, 1.0)?)?)?;
            losses = (losses * (missing + 1e-30)?.powf(self.gamma)?)?;
        }
        let alpha = t.affine(2.0 * self.alpha - 1.0, 1.0 - self.alpha)?;
        (losses * alpha)?.mean_all()?.to_dtype(DType::F32)
    }

    fn runs_on_gpus(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::testing::{check, recorded};

    #[test]
    fn it_is_torchvisions() {
        check("sigmoid_focal", &SigmoidFocal::default(), &recorded("some_classes"));
        let other = SigmoidFocal { gamma: 0.5, alpha: 0.6 };
        check("sigmoid_focal_g.5", &other, &recorded("some_classes"));
    }
}
