//! `loss.name = "time_frequency"`

use candle_core::{Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::loss::Loss;
use crate::ops;
use crate::plan::Targets;

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
