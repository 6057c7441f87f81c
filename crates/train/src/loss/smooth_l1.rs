//! `loss.name = "smooth_l1"`

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::loss::{Huber, Loss};
use crate::plan::Targets;

/// absolute error of numbers, quadratic up to `beta` (Girshick 2015), as `torch.nn.SmoothL1Loss`:
/// `huber` with `beta` as its `delta`, divided by `beta`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SmoothL1 {
    /// error above which the loss is linear with slope 1; the limit at 0 is `mae`.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub beta: f64,
}

impl Default for SmoothL1 {
    fn default() -> Self {
        Self { beta: 1.0 }
    }
}

impl Kind for SmoothL1 {
    const NAME: &'static str = "smooth_l1";
}

impl Loss for SmoothL1 {
    fn targets(&self) -> Targets {
        Targets::Numbers
    }

    fn is_never_negative(&self) -> bool {
        true
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        Huber { delta: self.beta }.mean(outputs, targets)? / self.beta
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
    fn it_is_pytorchs() {
        check("smooth_l1", &SmoothL1::default(), &recorded("targets"));
        check("smooth_l1_b.3", &SmoothL1 { beta: 0.3 }, &recorded("targets"));
    }
}
