//! `scheduler.name = "plateau"`

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kind::Kind;
use crate::optim::scheduler::Scheduler;
use crate::plan::{Mode, Span, format_number};

/// the rate drops when a metric stops improving, as PyTorch's `ReduceLROnPlateau`, after each
/// evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ReduceLrOnPlateau {
    /// metric to monitor.
    pub monitor: String,
    /// whether lower ("min") or higher ("max") is better. Default: it follows from the metric.
    #[schemars(example = Mode::Min)]
    pub mode: Option<Mode>,
    /// factor of a drop.
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub factor: f64,
    /// evaluations without improvement that are tolerated.
    pub patience: u64,
    /// smallest relative change that counts as an improvement.
    #[schemars(range(min = 0.0))]
    pub threshold: f64,
}

impl Default for ReduceLrOnPlateau {
    fn default() -> Self {
        let monitor = "val/loss".to_owned();
        Self { monitor, mode: None, factor: 0.1, patience: 10, threshold: 1e-4 }
    }
}

impl Kind for ReduceLrOnPlateau {
    const NAME: &'static str = "plateau";
}

/// State of `ReduceLROnPlateau`: the factor on the learning rate, and what led to it. Every rank
/// moves it with the same reduced metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plateau {
    scale: f64,
    best: Option<f64>,
    bad: u64,
}

impl Default for Plateau {
    fn default() -> Self {
        Self { scale: 1.0, best: None, bad: 0 }
    }
}

impl Plateau {
    /// Factor on the learning rate.
    pub fn scale(&self) -> f64 {
        self.scale
    }
}

impl ReduceLrOnPlateau {
    /// `threshold_mode = "rel"` of PyTorch.
    fn is_better(&self, value: f64, best: f64, better: Mode) -> bool {
        match self.mode.unwrap_or(better) {
            Mode::Min => value < best * (1.0 - self.threshold),
            Mode::Max => value > best * (1.0 + self.threshold),
        }
    }
}

impl Scheduler for ReduceLrOnPlateau {
    fn lr(&self, _: u64, span: &Span) -> f64 {
        span.lr
    }

    fn describe(&self, _: &Span) -> String {
        let Self { monitor, factor, patience, .. } = self;
        let factor = format_number(*factor);
        format!(
            "plateau: x {factor} when {monitor} has not improved for more than {patience} evaluations"
        )
    }

    fn monitor(&self) -> Option<&str> {
        Some(&self.monitor)
    }

    fn observe(&self, plateau: &mut Plateau, value: f64, better: Mode) {
        if plateau.best.is_none_or(|best| self.is_better(value, best, better)) {
            plateau.best = Some(value);
            plateau.bad = 0;
        } else {
            plateau.bad += 1;
        }
        if plateau.bad > self.patience {
            plateau.scale *= self.factor;
            plateau.bad = 0;
        }
    }
}
