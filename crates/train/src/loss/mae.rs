//! `loss.name = "mae"`

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::loss::Loss;
use crate::ops;
use crate::plan::Targets;

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
