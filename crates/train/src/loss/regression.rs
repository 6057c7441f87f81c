//! Losses of numbers: `loss.name = "mse"`, `"mae"`, `"huber"`, `"smooth_l1"`, and of forecasts,
//! `"time_frequency"`

use candle_core::{DType, Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::loss::Loss;
use crate::ops;
use crate::plan::Targets;

/// mean squared error of numbers, as `torch.nn.MSELoss`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mse {}

impl Kind for Mse {
    const NAME: &'static str = "mse";
}

impl Loss for Mse {
    fn targets(&self) -> Targets {
        Targets::Numbers
    }

    fn is_never_negative(&self) -> bool {
        true
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        ops::mse(outputs, targets)
    }

    fn runs_on_gpus(&self) -> bool {
        true
    }
}

/// mean absolute error of numbers, as `torch.nn.L1Loss`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Mae {}

impl Kind for Mae {
    const NAME: &'static str = "mae";
}

impl Loss for Mae {
    fn targets(&self) -> Targets {
        Targets::Numbers
    }

    fn is_never_negative(&self) -> bool {
        true
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        ops::mae(outputs, targets)
    }

    fn runs_on_gpus(&self) -> bool {
        true
    }
}

/// half the squared error of numbers up to `delta`, and linear beyond (Huber 1964), as
/// `torch.nn.HuberLoss`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Huber {
    /// threshold between the quadratic and the linear part.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub delta: f64,
}

impl Default for Huber {
    fn default() -> Self {
        Self { delta: 1.0 }
    }
}

impl Kind for Huber {
    const NAME: &'static str = "huber";
}

impl Loss for Huber {
    fn targets(&self) -> Targets {
        Targets::Numbers
    }

    fn is_never_negative(&self) -> bool {
        true
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let error = (outputs.to_dtype(DType::F64)? - targets.to_dtype(DType::F64)?)?;
        // The error, but at most `delta` of it: the slope of the loss, which a gradient must not go
        // through.
        let above = (&error - self.delta)?.relu()?;
        let below = (&error + self.delta)?.relu()?;
        let slope = ((below - above)? - self.delta)?.detach();
        let losses = ((&slope * error)? - (slope.sqr()? * 0.5)?)?;
        losses.mean_all()?.to_dtype(DType::F32)
    }

    fn runs_on_gpus(&self) -> bool {
        true
    }
}

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

/// for forecasts: (1 - alpha) times the mean absolute error, and alpha times the mean absolute
/// error of the Fourier coefficients over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimeFrequency {
    /// weight of the frequencies, 0 to 1.
    #[schemars(range(min = 0.0, max = 1.0), example = 0.35)]
    pub alpha: f64,
}

impl Kind for TimeFrequency {
    const NAME: &'static str = "time_frequency";
}

impl Loss for TimeFrequency {
    fn targets(&self) -> Targets {
        Targets::Series
    }

    fn is_never_negative(&self) -> bool {
        true
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        ops::time_frequency(outputs, targets, self.alpha)
    }

    fn runs_on_gpus(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::loss::testing::{check, recorded};

    #[test]
    fn huber_and_smooth_l1_are_pytorchs() {
        check("huber", &Huber::default(), &recorded("targets"));
        check("huber_d.3", &Huber { delta: 0.3 }, &recorded("targets"));
        check("smooth_l1", &SmoothL1::default(), &recorded("targets"));
        check("smooth_l1_b.3", &SmoothL1 { beta: 0.3 }, &recorded("targets"));
    }

    #[test]
    fn a_number_that_is_none_stays_one() {
        let outputs = Var::new(&[[f32::NAN]], &Device::Cpu).unwrap();
        let targets = Tensor::new(&[[0f32]], &Device::Cpu).unwrap();
        let loss = Huber::default().mean(&outputs, &targets).unwrap();
        assert!(loss.to_scalar::<f32>().unwrap().is_nan());
    }
}
