//! `loss.name = "huber"`

use candle_core::{DType, Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::loss::Loss;
use crate::plan::Targets;

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

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::loss::testing::{check, recorded};

    #[test]
    fn it_is_pytorchs() {
        check("huber", &Huber::default(), &recorded("targets"));
        check("huber_d.3", &Huber { delta: 0.3 }, &recorded("targets"));
    }

    #[test]
    fn a_number_that_is_none_stays_one() {
        let outputs = Var::new(&[[f32::NAN]], &Device::Cpu).unwrap();
        let targets = Tensor::new(&[[0f32]], &Device::Cpu).unwrap();
        let loss = Huber::default().mean(&outputs, &targets).unwrap();
        assert!(loss.to_scalar::<f32>().unwrap().is_nan());
    }
}
