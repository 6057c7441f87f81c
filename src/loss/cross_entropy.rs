//! `loss.name = "cross_entropy"`

use candle_core::{DType, Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::loss::{Loss, counted, rows};
use crate::ops;
use crate::plan::Targets;

/// softmax cross-entropy for classes, as `torch.nn.CrossEntropyLoss`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CrossEntropy {
    /// label smoothing factor, 0 to 1. It applies to training only: val/loss and test/loss are measured
    /// without it, as timm's are, and can be compared between runs with other factors.
    #[schemars(range(min = 0.0, max = 1.0), example = 0.1)]
    pub label_smoothing: f64,
}

impl Kind for CrossEntropy {
    const NAME: &'static str = "cross_entropy";
}

impl Loss for CrossEntropy {
    fn targets(&self) -> Targets {
        Targets::Classes
    }

    fn mean(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        mean(outputs, targets, self.label_smoothing)
    }

    fn measured(&self, outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
        mean(outputs, targets, 0.0)
    }

    fn runs_on_gpus(&self) -> bool {
        true
    }

    fn takes_probabilities(&self) -> bool {
        true
    }
}

fn mean(outputs: &Tensor, targets: &Tensor, smoothing: f64) -> Result<Tensor> {
    if targets.dtype() == DType::F32 {
        return ops::cross_entropy_soft(outputs, targets, smoothing);
    }
    let (outputs, targets) = rows(outputs, targets)?;
    if counted(&targets)? == 0 {
        return Ok(ops::cross_entropy_sum(&outputs, &targets, smoothing)?.0);
    }
    ops::cross_entropy(&outputs, &targets, smoothing)
}
