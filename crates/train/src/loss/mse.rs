//! `loss.name = "mse"`

use candle_core::{Result, Tensor};
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
